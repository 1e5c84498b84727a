# A task that is tried again keeps its place: what is behind it waits, whatever its priority.
enqueue one {"queue":"bills","kind":"a","order_key":"ada","retry":{"base_ms":60000,"cap_ms":60000}} => ready
enqueue two {"queue":"bills","kind":"b","order_key":"ada","priority":0} => blocked
claim w1 bills => one
fail one@w1 {"error":"not yet"} => retrying
expect two {"state":"blocked"}
claim w2 bills => none
advance 73000
claim w2 bills => one
ack one@w2 => done
claim w3 bills => two
ack two@w3 => done

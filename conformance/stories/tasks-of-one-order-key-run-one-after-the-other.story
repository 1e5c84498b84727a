# The next one is blocked until the one before has ended; other keys go on.
enqueue one {"queue":"bills","kind":"a","order_key":"ada"} => ready
enqueue two {"queue":"bills","kind":"b","order_key":"ada"} => blocked
enqueue other {"queue":"bills","kind":"c","order_key":"bob"} => ready
claim w1 bills => one other
claim w2 bills => none
ack one@w1 => done
expect two {"state":"ready","order_key":"ada"}
claim w2 bills => two
ack two@w2 => done
ack other@w1 => done

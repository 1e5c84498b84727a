# Each backoff is twice the one before, give or take a fifth; then the task is done.
enqueue t {"queue":"mail","kind":"welcome","retry":{"attempts":5,"base_ms":100000,"cap_ms":10000000}} => ready
claim w1 mail => t
fail t@w1 {"error":"SMTP 451"} => retrying
expect t {"state":"retrying","attempt":1,"error":"SMTP 451","due_in_ms":[50000,120000]}
advance 40000
expect t {"state":"retrying"}
advance 81000
expect t {"state":"ready","due_in_ms":null}
claim w1 mail => t
fail t@w1 {"error":"SMTP 452"} => retrying
expect t {"state":"retrying","attempt":2,"error":"SMTP 452","due_in_ms":[100000,240000]}
advance 241000
claim w2 mail => t
ack t@w2 => done
expect t {"state":"done","attempt":3}

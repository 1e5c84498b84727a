# Its claims are freed long before their deadlines; that was an attempt.
skip sdk: a worker of this process cannot vanish; the cluster's tests kill and freeze whole processes
session w1
enqueue t {"queue":"mail","kind":"welcome","hold_ms":3600000} => ready
claim w1 mail => t
vanish w1
expect t {"state":"ready","worker":null}
claim w2 mail => t
expect t {"attempt":2}
newer t@w2 t@w1
ack t@w1 => error stale_token
ack t@w2 => done

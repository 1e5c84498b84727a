# Without an attempt: a deployment costs nobody anything.
session w1
enqueue t {"queue":"mail","kind":"welcome"} => ready
claim w1 mail => t
leave w1
expect t {"state":"ready","worker":null}
claim w2 mail => t
expect t {"attempt":1}
ack t@w2 => done

# What a worker says of a task that is another's by now does not count, and changes nothing.
enqueue t {"queue":"mail","kind":"welcome","hold_ms":30000} => ready
claim w1 mail => t
advance 31000
claim w2 mail => t
ack t@w1 {"output":"stale"} => error stale_token
expect t {"state":"claimed","worker":"w2","attempt":2}
ack t@w2 {"output":"fresh"} => done
expect t {"state":"done","output":"fresh"}

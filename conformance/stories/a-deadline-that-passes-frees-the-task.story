# The next claim is the next attempt, under a greater fence.
enqueue t {"queue":"mail","kind":"welcome","hold_ms":30000} => ready
claim w1 mail => t
expect t {"state":"claimed","deadline_in_ms":[1,30000]}
advance 31000
expect t {"state":"ready","worker":null,"deadline_in_ms":null}
claim w2 mail => t
expect t {"state":"claimed","attempt":2,"worker":"w2"}
newer t@w2 t@w1
ack t@w2 => done

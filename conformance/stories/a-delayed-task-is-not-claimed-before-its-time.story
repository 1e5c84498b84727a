# And is ready as soon as that has come.
enqueue t {"queue":"mail","kind":"welcome","delay_ms":3600000} => delayed
expect t {"state":"delayed","due_in_ms":[3500000,3600000]}
claim w1 mail => none
advance 3500000
expect t {"state":"delayed"}
advance 101000
expect t {"state":"ready"}
claim w1 mail => t
ack t@w1 => done

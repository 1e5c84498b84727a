# A release may name a delay; no attempt is used up.
enqueue t {"queue":"mail","kind":"welcome"} => ready
claim w1 mail => t
release t@w1 {"delay_ms":600000} => delayed
expect t {"state":"delayed","due_in_ms":[500000,600000]}
claim w2 mail => none
advance 601000
claim w2 mail => t
expect t {"attempt":1}
ack t@w2 => done

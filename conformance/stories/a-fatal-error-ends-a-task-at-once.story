# No other attempt, however many are left.
enqueue t {"queue":"mail","kind":"welcome","retry":{"attempts":20}} => ready
claim w1 mail => t
fail t@w1 {"error":"no such address","fatal":true} => dead
expect t {"state":"dead","attempt":1,"attempts_max":20,"error":"no such address"}

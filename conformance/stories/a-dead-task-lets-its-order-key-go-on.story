# What is dead blocks nobody.
enqueue one {"queue":"bills","kind":"a","order_key":"ada"} => ready
enqueue two {"queue":"bills","kind":"b","order_key":"ada"} => blocked
claim w1 bills => one
fail one@w1 {"error":"no","fatal":true} => dead
expect two {"state":"ready"}
claim w1 bills => two
ack two@w1 => done

# It begins anew, with all its attempts.
enqueue t {"queue":"mail","kind":"welcome","retry":{"attempts":1}} => ready
requeue t => error not_ready
claim w1 mail => t
fail t@w1 {"error":"no"} => dead
requeue t => ready
expect t {"state":"ready"}
claim w2 mail => t
newer t@w2 t@w1
ack t@w2 => done
expect t {"state":"done"}
requeue t => error already_ended

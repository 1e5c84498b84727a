# What was cancelled by mistake can be brought back.
enqueue t {"queue":"mail","kind":"welcome"} => ready
cancel t {"reason":"by mistake"} => cancelled
requeue t => ready
claim w1 mail => t
ack t@w1 => done

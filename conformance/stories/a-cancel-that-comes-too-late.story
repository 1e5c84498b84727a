# A worker that has finished all the same may say so.
enqueue t {"queue":"mail","kind":"welcome"} => ready
claim w1 mail => t
cancel t {"reason":"wrong address"} => claimed
told t@w1
ack t@w1 {"output":"sent"} => done
expect t {"state":"done","output":"sent"}

# A claimed task is its worker's until that says what became of it: a fail is no retry then.
enqueue t {"queue":"mail","kind":"welcome"} => ready
claim w1 mail => t
cancel t {"reason":"wrong address"} => claimed
told t@w1
fail t@w1 {"error":"stopped"} => cancelled
expect t {"state":"cancelled","attempt":1}
claim w2 mail => none

# Another task with the key is refused until the first one has ended.
enqueue t {"queue":"mail","kind":"report","unique":{"key":"daily","until":"final"}} => ready
enqueue other {"queue":"mail","kind":"report","unique":{"key":"daily","until":"final"}} => error not_unique
claim w1 mail => t
enqueue other {"queue":"mail","kind":"report","unique":{"key":"daily","until":"final"}} => error not_unique
ack t@w1 => done
enqueue other {"queue":"mail","kind":"report","unique":{"key":"daily","until":"final"}} => ready

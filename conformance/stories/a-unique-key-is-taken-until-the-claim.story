# With until = claimed, the key is free when the work has begun.
enqueue t {"queue":"mail","kind":"report","unique":{"key":"daily","until":"claimed"}} => ready
enqueue other {"queue":"mail","kind":"report","unique":{"key":"daily","until":"claimed"}} => error not_unique
claim w1 mail => t
enqueue other {"queue":"mail","kind":"report","unique":{"key":"daily","until":"claimed"}} => ready
claim w2 mail => other
ack t@w1 => done
ack other@w2 => done

# A worker gives a task back: the next claim is the same attempt, under a greater fence.
enqueue t {"queue":"mail","kind":"welcome"} => ready
claim w1 mail => t
release t@w1 => ready
expect t {"state":"ready","worker":null,"history":["enqueued","claimed","freed"]}
claim w2 mail => t
expect t {"state":"claimed","attempt":1,"worker":"w2"}
newer t@w2 t@w1
ack t@w2 => done
expect t {"state":"done","attempt":1}

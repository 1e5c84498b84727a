# A task is enqueued, claimed, acked, and its output can be read.
enqueue t {"queue":"mail","kind":"welcome","payload":{"to":"ada"},"headers":{"trace":"7"}} => ready
expect t {"state":"ready","attempt":0,"queue":"mail","kind":"welcome","payload":{"to":"ada"},"headers":{"trace":"7"},"priority":5,"history":["enqueued"]}
claim w1 mail => t
expect t {"state":"claimed","attempt":1,"worker":"w1"}
ack t@w1 {"output":{"sent":true}} => done
expect t {"state":"done","attempt":1,"output":{"sent":true},"worker":null,"history":["enqueued","claimed","acked"]}

# A repeat of an ack gets the same answer and does nothing a second time.
skip sdk: a handler ends once, and repeats are the SDK's own affair
enqueue t {"queue":"mail","kind":"welcome"} => ready
claim w1 mail => t
ack t@w1 {"output":1,"then":[{"queue":"audit","kind":"log","payload":{}}]} => done
ack t@w1 {"output":1,"then":[{"queue":"audit","kind":"log","payload":{}}]} => done
expect-queue audit {"totals":{"enqueued":1}}

# They belong to the ack: a retry tries them again.
skip http: a fail cannot name follow-ups
skip grpc: a fail cannot name follow-ups
enqueue t {"queue":"mail","kind":"welcome","retry":{"base_ms":600000,"cap_ms":600000}} => ready
claim w1 mail => t
fail t@w1 {"error":"no","then":[{"queue":"audit","kind":"log"}]} => retrying
advance 730000
claim w1 mail => t
ack t@w1 {"then":[{"queue":"audit","kind":"log"}]} => done
expect-queue audit {"totals":{"enqueued":1}}

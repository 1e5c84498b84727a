# What shall follow is enqueued exactly if the ack counts.
enqueue t {"queue":"mail","kind":"welcome","hold_ms":30000} => ready
claim w1 mail => t
advance 31000
claim w2 mail => t
ack t@w1 {"then":[{"queue":"audit","kind":"log","payload":{"by":"w1"}}]} => error stale_token
ack t@w2 {"then":[{"queue":"audit","kind":"log","payload":{"by":"w2"},"priority":1},{"queue":"audit","kind":"bill","payload":{},"delay_ms":60000}]} => done
find log audit log
find bill audit bill
expect log {"state":"ready","payload":{"by":"w2"},"priority":1}
expect bill {"state":"delayed"}
expect-queue audit {"totals":{"enqueued":2}}
claim w3 audit => log
ack log@w3 => done

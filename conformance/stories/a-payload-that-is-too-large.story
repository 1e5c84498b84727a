# A queue says how large a payload may be; what is larger is refused, and nothing is enqueued.
set-queue mail {"payload_bytes_max":64}
enqueue small {"queue":"mail","kind":"welcome","payload":"fits"} => ready
enqueue large {"queue":"mail","kind":"welcome","payload":"0123456789012345678901234567890123456789012345678901234567890123456789"} => error payload_too_large
expect-queue mail {"totals":{"enqueued":1}}

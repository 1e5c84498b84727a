# The same key for something else is a mistake of the caller.
enqueue t {"queue":"mail","kind":"welcome","payload":{"n":1},"dedup_key":"k"} => ready
enqueue other {"queue":"mail","kind":"welcome","payload":{"n":2},"dedup_key":"k"} => error dedup_mismatch
enqueue other {"queue":"mail","kind":"goodbye","payload":{"n":1},"dedup_key":"k"} => error dedup_mismatch
enqueue elsewhere {"queue":"post","kind":"welcome","payload":{"n":2},"dedup_key":"k"} => ready
expect-queue mail {"totals":{"enqueued":1}}

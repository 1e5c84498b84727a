# Each has its own outcome; a bad one does not spoil the others.
enqueue first {"queue":"mail","kind":"welcome","payload":1,"dedup_key":"k"} => ready
enqueue-many a,b,c,d [{"queue":"mail","kind":"welcome","payload":1},{"queue":"mail","kind":"welcome","payload":2,"dedup_key":"k"},{"queue":"mail","kind":"welcome","payload":1,"dedup_key":"k"},{"queue":"mail","kind":"welcome","delay_ms":60000}] => ready; error dedup_mismatch; duplicate first; delayed
expect-queue mail {"depth":{"ready":2,"delayed":1},"totals":{"enqueued":3}}

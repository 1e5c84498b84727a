# A repeat gets the task that is there, while that lives and for its window after the end.
set-queue mail {"shards":1}
enqueue t {"queue":"mail","kind":"welcome","payload":{"n":1},"dedup_key":"welcome:42","dedup_window_ms":600000} => ready
enqueue again {"queue":"mail","kind":"welcome","payload":{"n":1},"dedup_key":"welcome:42"} => duplicate t
claim w1 mail => t
enqueue again {"queue":"mail","kind":"welcome","payload":{"n":1},"dedup_key":"welcome:42"} => duplicate t
ack t@w1 => done
enqueue again {"queue":"mail","kind":"welcome","payload":{"n":1},"dedup_key":"welcome:42"} => duplicate t
expect t {"state":"done","dedup_key":"welcome:42"}
# The mark is due after the window, in the same shard: when it is ready, the window is over.
enqueue mark {"queue":"mail","kind":"mark","delay_ms":600500} => delayed
advance 601000
expect mark {"state":"ready"}
enqueue next {"queue":"mail","kind":"welcome","payload":{"n":1},"dedup_key":"welcome:42"} => ready
expect-queue mail {"totals":{"enqueued":3}}

# And takes them again when there is room; acks are never refused.
set-queue mail {"tasks_max":1,"shards":1}
enqueue t {"queue":"mail","kind":"welcome"} => ready
enqueue more {"queue":"mail","kind":"welcome"} => error queue_full
claim w1 mail => t
ack t@w1 => done
enqueue more {"queue":"mail","kind":"welcome"} => ready

# The last attempt that fails ends the task; it can be looked at.
enqueue t {"queue":"mail","kind":"welcome","retry":{"attempts":2,"base_ms":600000,"cap_ms":600000}} => ready
claim w1 mail => t
fail t@w1 {"error":"first"} => retrying
advance 730000
claim w1 mail => t
fail t@w1 {"error":"second"} => dead
expect t {"state":"dead","attempt":2,"attempts_max":2,"error":"second","history":["enqueued","claimed","failed","ready","claimed","failed"]}
expect-queue mail {"depth":{"dead":1,"ready":0,"claimed":0},"totals":{"enqueued":1,"dead":1,"failed":2}}

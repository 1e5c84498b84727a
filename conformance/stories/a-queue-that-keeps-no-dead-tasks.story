# With on_exhausted = discard, a task whose attempts are used up has failed, and is not dead.
set-queue mail {"on_exhausted":"discard","retry":{"attempts":1}}
enqueue t {"queue":"mail","kind":"welcome"} => ready
claim w1 mail => t
fail t@w1 {"error":"no"} => failed
expect t {"state":"failed","attempt":1,"attempts_max":1}
expect-queue mail {"depth":{"dead":0}}

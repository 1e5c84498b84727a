# 0 is served first, 9 last; among equals the oldest is.
enqueue late {"queue":"mail","kind":"a","priority":9} => ready
advance 1000
enqueue old {"queue":"mail","kind":"b"} => ready
advance 1000
enqueue young {"queue":"mail","kind":"c","priority":5} => ready
advance 1000
enqueue urgent {"queue":"mail","kind":"d","priority":0} => ready
claim w1 mail => urgent
claim w2 mail => old
claim w3 mail => young
claim w4 mail => late
expect urgent {"priority":0}

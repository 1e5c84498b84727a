# Whoever enqueued a task reads what came out, or how it ended otherwise.
enqueue good {"queue":"sums","kind":"add","payload":[1,2]} => ready
claim w1 sums => good
ack good@w1 {"output":3} => done
result good => done 3
enqueue bad {"queue":"sums","kind":"add","payload":["x"]} => ready
claim w1 sums => bad
fail bad@w1 {"error":"not a number","fatal":true} => dead
result bad => dead

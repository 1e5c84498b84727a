# Tasks come in and wait; what is claimed goes on.
enqueue running {"queue":"mail","kind":"a"} => ready
claim w1 mail => running
pause mail
expect-queue mail {"paused":true}
enqueue waiting {"queue":"mail","kind":"b"} => ready
claim w2 mail => none
ack running@w1 => done
resume mail
expect-queue mail {"paused":false}
claim w2 mail => waiting
ack waiting@w2 => done

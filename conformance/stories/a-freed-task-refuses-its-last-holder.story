# Between two claims the task is nobody's.
enqueue t {"queue":"mail","kind":"welcome","hold_ms":30000} => ready
claim w1 mail => t
advance 31000
expect t {"state":"ready"}
ack t@w1 => error not_claimed
expect t {"state":"ready","output":null}

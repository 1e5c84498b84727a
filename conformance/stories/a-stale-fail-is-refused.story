# Neither does a fail of a worker that lost its task, nor its extension.
enqueue t {"queue":"mail","kind":"welcome","hold_ms":30000} => ready
claim w1 mail => t
advance 31000
claim w2 mail => t
extend t@w1 {"hold_ms":60000} => error stale_token
fail t@w1 {"error":"stale"} => error stale_token
expect t {"state":"claimed","worker":"w2","attempt":2,"error":null}
ack t@w2 => done

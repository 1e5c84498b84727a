# retry_in_ms stands in place of the policy's backoff.
enqueue t {"queue":"mail","kind":"welcome","retry":{"base_ms":1000,"cap_ms":1000}} => ready
claim w1 mail => t
fail t@w1 {"error":"busy","retry_in_ms":3600000} => retrying
expect t {"state":"retrying","due_in_ms":[3500000,3600000]}
advance 3500000
expect t {"state":"retrying"}
advance 101000
claim w1 mail => t
ack t@w1 => done
expect t {"state":"done","attempt":2}

# From now on, and not from the deadline before.
enqueue t {"queue":"mail","kind":"welcome","hold_ms":60000} => ready
claim w1 mail => t
expect t {"deadline_in_ms":[1,60000]}
extend t@w1 {"hold_ms":3600000} => held
expect t {"state":"claimed","attempt":1,"deadline_in_ms":[3000000,3600000]}
ack t@w1 => done

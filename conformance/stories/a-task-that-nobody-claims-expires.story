# It ends at its time, and only if nobody holds it.
enqueue t {"queue":"mail","kind":"welcome","expires_in_ms":600000} => ready
advance 601000
expect t {"state":"expired","attempt":0}
claim w1 mail => none

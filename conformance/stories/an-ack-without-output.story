# What gives nothing back is done all the same.
enqueue t {"queue":"mail","kind":"welcome"} => ready
expect t {"payload":null}
claim w1 mail => t
ack t@w1 => done
expect t {"state":"done","output":null}

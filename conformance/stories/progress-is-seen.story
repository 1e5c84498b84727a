# Whoever looks sees how far a task is; the newest note counts.
enqueue t {"queue":"mail","kind":"welcome"} => ready
claim w1 mail => t
progress t@w1 {"percent":40,"note":"page 4 of 10"} => held
expect t {"state":"claimed","progress":{"percent":40,"note":"page 4 of 10"}}
progress t@w1 {"percent":80,"note":"page 8 of 10"} => held
expect t {"progress":{"percent":80,"note":"page 8 of 10"}}
ack t@w1 => done

# And is not claimed any more; a second cancel comes too late.
enqueue t {"queue":"mail","kind":"welcome"} => ready
cancel t {"reason":"wrong address"} => cancelled
expect t {"state":"cancelled","attempt":0,"error":"wrong address","history":["enqueued","cancelled"]}
cancel t {"reason":"again"} => error already_ended
claim w1 mail => none

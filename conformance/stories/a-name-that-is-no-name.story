# A task that cannot be is refused with a word for programs.
enqueue t {"queue":"mail","kind":"welcome","priority":12} => error invalid_request
enqueue t {"queue":"no spaces","kind":"welcome"} => error invalid_request
enqueue t {"queue":"mail","kind":""} => error invalid_request

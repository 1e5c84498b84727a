# In place of what the task or the queue says.
set-queue mail {"hold_ms":120000}
enqueue short {"queue":"mail","kind":"a","hold_ms":60000} => ready
enqueue default {"queue":"mail","kind":"b","priority":9} => ready
claim w1 mail => short
expect short {"deadline_in_ms":[1,60000]}
claim w2 mail => default
expect default {"deadline_in_ms":[60001,120000]}
release short@w1 => ready
claim w3 mail {"hold_ms":600000} => short
expect short {"deadline_in_ms":[300000,600000]}

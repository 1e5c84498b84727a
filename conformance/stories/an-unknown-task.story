# Whatever is asked of it, there is none.
name ghost 01994c2e-8f00-7001-8000-000000000000
look ghost => error not_found
cancel ghost {"reason":"none"} => error not_found
requeue ghost => error not_found

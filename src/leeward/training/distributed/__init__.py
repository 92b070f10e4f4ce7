"""`leeward train --workers N`: the engine behind `n_jobs`, launched by Ray Train; `docs/scaling.md`.

cluster     Ray as Leeward starts or joins it, for populations too
desk        where the worker that trains and the process that started it all leave word for each other
roles       what happens inside a worker
workers     starts the workers, shows what they say, and starts them again from the last checkpoint when one is lost
"""

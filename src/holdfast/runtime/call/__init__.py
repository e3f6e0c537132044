"""One call of a step or tool. The files are its stages, in this order:

    enter → match → gate → approval → intent → attempt → results → commit

`recover` handles calls without a receipt: their outcome is unknown, or the code stopped waiting for them. `waits` and
`checkpoints` are the other things that have a place in the log. `flow` puts the stages together, `operations` is
what they ask for, `driver` performs it for code that blocks and `async_driver` for code that awaits.
"""

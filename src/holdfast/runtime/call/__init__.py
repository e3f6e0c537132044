"""One call of a step or tool. The files are its stages, in this order:

    enter → match → gate → approval → intent → attempt → results → commit

`recover` and `unanswered` handle calls whose outcome is unknown, `cancelled` calls that the code stopped waiting for,
`waits` and `checkpoints` the other things that have a place in the log. `flow` puts the stages together, `operations` is
what they ask for, `drivers` performs it for code that blocks and code that awaits.
"""

"""What executes agents. One package for each layer, from the lowest to the highest:

- `declare`: steps, tools and agents as they are declared: parameters, types, options.
- `lines`: the tasks of an async agent, and the order in which they continue.
- `log`: a run in memory: reading its log, writing it, what its code sees; its lease and its ancestors.
- `call`: one call of a step or tool, from `enter` to its receipt. The files are the stages.
- `api`: what an agent is given: `run`, and the decorators.
- `exec`: whole runs: claim, execute, suspend, undo, replay; workers and schedules.
"""

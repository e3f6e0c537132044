"""The agent of a lesson on agent state: it plans, calls tools, reflects, and survives a crash."""

import tempfile

from holdfast import AgentState, Holdfast, Phase, Run, loop, step


@step
def search(topic: str) -> str:
    return {"tides": "the moon pulls", "moon": "it is far away"}[topic]


@loop(max_iterations=10, checkpoint="every_iteration")
def student(run: Run, state: AgentState) -> AgentState:
    todo = state.memory.pending
    match state.phase:
        case Phase.PLANNING:
            return state.with_plan(["tides", "moon"]).to_executing()
        case Phase.EXECUTING:
            found = state.record(search(todo[0]), name="search")
            return found.with_step(todo[0], "done").to_reflecting()
        case _:
            return state.to_executing() if todo else state.to_done("because of the moon")


with Holdfast(f"{tempfile.mkdtemp()}/lesson.db") as hf:
    end = hf.run(student, "Why are there tides?", id="session-1")  # the same id resumes it
    print(f"{end.phase} after {end.iteration} iterations: {end.answer}")
    print(*(f"{call.name}: {call.to_observation()}" for call in end.memory.tool_calls), sep="\n")

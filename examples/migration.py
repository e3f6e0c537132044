"""A service is moved to another cluster, from a canonical agent state in JSON.

One component turns what tools return into a patch of the state, another chooses the next action. The state says
which risk levels need a person, how much may be used, and what is known. The cluster answers only at the third
attempt, and the agent is resumed after a person has approved the change.

    python examples/migration.py
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from holdfast import AgentState, Holdfast, Retry, Run, RunWaiting, StatePatch, loop, tool

HOME = Path(tempfile.mkdtemp(prefix="migration-"))

TASK = """{
  "goal": "Move the billing service to the new cluster",
  "constraints": {"human_in_the_loop": {"required_for_risk_levels": ["external_action"]}},
  "budget": {"max_steps": 20, "max_wall_time_ms": 300000, "max_artifact_bytes_in_context": 400},
  "plan": ["Check status", "Collect config", "Apply changes", "Verify"],
  "known_facts": [{"key": "service", "value": "billing", "source": "user"}],
  "open_questions": ["Which namespace?"]
}"""
ANSWERS = {
    "Check status": "3 pods run in namespace prod",
    "Verify": "3 pods run in the new cluster",
}
DELAYS = ["the cluster is busy", "the cluster is still busy"]


@tool(risk="read", retry=Retry(attempts=3, initial=0.01))
def ask_cluster(question: str) -> str:
    if DELAYS:
        raise ConnectionRefusedError(DELAYS.pop())
    return ANSWERS[question]


@tool(risk="read")
def read_config(service: str) -> str:
    return f"service: {service}\n" + "setting: value\n" * 100


@tool(risk="external_action")
def apply(service: str, idempotency_key: str = "") -> str:
    return f"{service} applied"


def normalise(step: str, result: str) -> StatePatch:
    """From what a tool returned to what is known: nothing else changes the state."""
    facts = {step: result if len(result) < 100 else f"{len(result)} characters"}
    answered = ["Which namespace?"] if "namespace" in result else []
    return StatePatch(facts=facts, closed=answered)


def act(run: Run, step: str) -> str:
    """The next action, by the step of the plan."""
    match step:
        case "Collect config":
            config = read_config("billing")
            run.artifact(
                "config", config.encode(), type="tool_result.config", summary="billing's config"
            )
            return config
        case "Apply changes":
            return apply("billing")
    return ask_cluster(step)


@loop(max_iterations=10)
def migrate(run: Run, state: AgentState) -> AgentState:
    if not state.memory.pending:
        return state.to_done(
            f"{len(state.memory.facts)} facts, {len(state.memory.questions)} open questions"
        )
    step = state.memory.pending[0]
    shown = run.context(max_bytes=400)
    print(f"  {step} (a model would be shown {len(str(shown))} characters)")
    return state.patched(normalise(step, act(run, step))).with_step(step, "done")


def main() -> None:
    with Holdfast(os.environ.get("HOLDFAST_URL") or HOME / "holdfast.db") as hf:
        task = AgentState.from_json(TASK)
        print("Moving the service:")
        try:
            hf.run(migrate, task, id="billing")
        except RunWaiting as waiting:
            print(f"  waiting for {waiting.waiting_for}")
        hf.approve("billing", by="ann", why="it is Tuesday")
        end = hf.run(migrate, task, id="billing")
        attempts = [len(call.attempts) for call in hf.get("billing").calls]
        print(f"Done: {end.answer}. Attempts of each call: {attempts}")
        print(
            f"As JSON again: {len(AgentState.from_json(end.to_json()).memory.plan)} steps in the plan"
        )


if __name__ == "__main__":
    main()

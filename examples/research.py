"""A research loop: plan, search, reflect, and once more until enough is known.

The state is a value: every iteration takes one and returns a new one, and it is committed before the next
begins. Here the process "dies" in the middle; another one continues from the last committed state, without
doing the earlier iterations again.

    python examples/research.py
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from holdfast import AgentState, Holdfast, Phase, Run, loop, step

HOME = Path(tempfile.mkdtemp(prefix="research-"))

LIBRARY = {
    "tides": "Tides are caused mainly by the moon; see also: spring tides.",
    "spring tides": "At new and full moon sun and moon pull together; see also: neap tides.",
    "neap tides": "At half moon they pull at right angles, and the tides are small.",
}


class PowerCut(BaseException):
    """Stands for a process that dies: nothing that follows in it happens."""


CUTS = [5]
"""In which iteration the power fails, once."""


@step
def search(topic: str) -> str:
    print(f"    searching the library for {topic!r}")
    return LIBRARY.get(topic, "nothing found")


def open_topics(state: AgentState) -> list[str]:
    """What the library points to and is not read yet."""
    known = {fact.key for fact in state.memory.facts}
    texts = [str(fact.value) for fact in state.memory.facts]
    pointed = [text.rpartition("see also: ")[2].rstrip(".") for text in texts if "see also" in text]
    return [topic for topic in pointed if topic not in known]


@loop(max_iterations=20, checkpoint="every_iteration")
def researcher(run: Run, state: AgentState) -> AgentState:
    print(f"  iteration {state.iteration}: {state.phase}")
    match state.phase:
        case Phase.PLANNING:
            wanted = open_topics(state) if state.memory.facts else [state.goal]
            return state.with_plan([f"read about {topic}" for topic in wanted]).to_executing()
        case Phase.EXECUTING:
            topic = state.memory.pending[0].removeprefix("read about ")
            found = search(topic)
            if CUTS and CUTS[0] <= state.iteration:
                CUTS.clear()
                raise PowerCut
            return state.with_fact(topic, found, source="library").to_reflecting()
        case _:
            if open_topics(state):
                return state.to_planning()
            return state.to_done(" ".join(str(fact.value) for fact in state.memory.facts))


def main() -> None:
    url = os.environ.get("HOLDFAST_URL") or HOME / "holdfast.db"
    with Holdfast(url) as hf:
        print("The first process:")
        try:
            hf.run(researcher, "tides", id="tides")
        except PowerCut:
            print("  … the power fails")
    with Holdfast(url) as hf:
        print("Another process, later:")
        state = hf.run(researcher, "tides", id="tides")
        print(
            f"Done in {state.iteration} iterations. It knows of {', '.join(f.key for f in state.memory.facts)}:"
        )
        print(f"  {state.answer}")


if __name__ == "__main__":
    main()

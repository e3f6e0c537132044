"""An agent that a model drives: it finds out why a disk is full, and cleans up.

The model is scripted, so this needs no key and no network. With `OPENAI_API_KEY` set, put
`OpenAIModel("…")` in its place: nothing else changes. The disk is a folder made for the occasion.

    python examples/disk_space.py
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from holdfast import Budget, Holdfast, LLMAgent, tool
from holdfast.agents.models import ScriptedModel, call, say

HOME = Path(tempfile.mkdtemp(prefix="disk-"))
DISK = HOME / "disk"


def fill_disk() -> None:
    for name, kilobytes in {"logs/old.log": 900, "logs/new.log": 20, "data/shop.db": 80}.items():
        path = DISK / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 1024 * kilobytes)


def left_over() -> list[str]:
    return [str(path.relative_to(DISK)) for path in sorted(DISK.rglob("*")) if path.is_file()]


@tool(risk="read")
def disk_usage(folder: str = ".") -> dict[str, int]:
    """How many kilobytes each file takes.

    Args:
        folder: Where to look, below the disk's root.
    """
    print(f"\n    [disk_usage {folder}]")
    root = DISK / folder
    return {
        str(p.relative_to(DISK)): p.stat().st_size // 1024
        for p in sorted(root.rglob("*"))
        if p.is_file()
    }


@tool(risk="write_local")
def delete_log(name: str, idempotency_key: str = "") -> str:
    """Delete one log file.

    Args:
        name: The file, as disk_usage names it. Only files below logs/ can be deleted.
    """
    print(f"\n    [delete_log {name}]")
    path = (DISK / name).resolve()
    if not path.is_relative_to((DISK / "logs").resolve()):
        raise PermissionError(f"{name} is not a log")  # told to the model, which may do better
    path.unlink(missing_ok=True)
    return f"{name} is deleted"


MODEL = ScriptedModel(
    say(
        "I look where the space went.",
        call("disk_usage", folder="logs"),
        call("disk_usage", folder="data"),
    ),
    say("The database is in the way.", call("delete_log", name="data/shop.db")),
    say(
        "Right, only logs. The old one is by far the biggest.",
        call("delete_log", name="logs/old.log"),
    ),
    "Your disk had 1000 kB in use; I deleted logs/old.log, which was 900 of them. The data is untouched.",
    tokens_per_turn=350,
)

devops = LLMAgent(
    "devops",
    model=MODEL,
    instructions="You keep disks tidy. Look before you delete. Never touch data.",
    tools=[disk_usage, delete_log],
    budget=Budget(max_steps=20, max_llm_tokens=10_000),
    on_text=lambda text: print(text, end="", flush=True),
)


def main() -> None:
    fill_disk()
    with Holdfast(os.environ.get("HOLDFAST_URL") or HOME / "holdfast.db") as hf:
        print("The model says, while it works:\n")
        answer = hf.run(devops, "I'm out of disk space. Fix it.", id="disk-1")
        print("\n\nThe answer:", answer)

        state = hf.get("disk-1")
        print("\nWhat it chose, and why:")
        for decision in state.decisions:
            print(f"  {decision.name}: {', '.join(decision.choice)}: {decision.why}")
        print("\nWhat it did:")
        for step in state.calls:
            print(f"  step {step.step} {step.name}: {step.status}")
        print(f"\n{state.usage.input_tokens} tokens. Left on the disk: {', '.join(left_over())}")


if __name__ == "__main__":
    main()

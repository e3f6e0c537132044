"""Advice: the commands with which a run continues, for the store that it is in.

A command works as printed. It names the store if that is not the default one. What the reader must fill in is written
in capitals: FILE for the agent's file, VALUE for an answer, RESULT and WHY for a call in doubt.
"""

from __future__ import annotations

import os
import shlex
from typing import Literal

from msgspec import Struct

from holdfast.errors import NotNow, Remedy
from holdfast.store.opening import is_default
from holdfast.store.passwords import without_password

PLACEHOLDERS = ("FILE", "ID", "NEWCODE", "RESULT", "VALUE", "WHY")


class NextStep(Struct, frozen=True):
    """One thing that a person can do about a run. `resume`, `rerun` and `worker` need the agent's code, all others do not."""

    verb: Literal["approve", "reject", "answer", "signal", "resolve", "resume", "rerun", "worker"]
    run_id: str
    request: str = ""
    """The request to decide, if the run has several of its kind."""
    step: int = 0
    """The call to resolve."""
    how: Literal["", "done", "failed", "retry"] = ""
    name: str = ""
    """The signal to send."""
    value: str = ""
    """One of the options of a question; empty if any value may be answered."""

    accept_new_steps: bool = False
    """Make the calls that the code has added."""
    override: str = ""
    """The check that refuses the resume, if one does."""
    limits: tuple[str, ...] = ()
    """Options of `resume` for a run that failed by a limit, which needs a higher one."""


def command(url: str | None, *words: object) -> str:
    """A command that a person can paste, for the store that this one was given."""
    said = ["holdfast", *map(str, words)]
    if url and url != os.environ.get("HOLDFAST_URL"):
        said += ["--db", without_password(url)]
    return " ".join(word if word in PLACEHOLDERS else shlex.quote(word) for word in said)


def store_option(url: str) -> str:
    """The option that names a store in a command; empty if it is found without."""
    return "" if is_default(url) else f"--db {shlex.quote(without_password(url))}"


def command_for(store_url: str, *words: str) -> str:
    """A command that a person can paste, for the store that was opened with this URL."""
    return " ".join(filter(None, ("holdfast", *words, store_option(store_url))))


def refusal(error: NotNow, url: str | None, file: str = "FILE") -> str:
    """The message of a refusal, with commands instead of Python calls."""

    def written(remedy: Remedy) -> str:
        return command(url, *(file if word == "FILE" else word for word in remedy.words))

    return error.text(written) if error.remedies else str(error)


def advice(step: NextStep, url: str | None = None, file: str = "FILE") -> str:
    """The command that takes this step."""
    which = ["--request", step.request] if step.request else []
    match step.verb:
        case "approve" | "reject":
            return command(url, step.verb, step.run_id, *which)
        case "answer":
            return command(url, "answer", step.run_id, step.value or "VALUE", *which)
        case "signal":
            return command(url, "signal", step.run_id, step.name)
        case "resolve":
            way = {"done": ["--done", "RESULT"], "failed": ["--failed", "WHY"]}.get(
                step.how, ["--retry"]
            )
            return command(url, "resolve", step.run_id, step.step, *way)
        case "resume":
            more = ["--accept-new-steps"] if step.accept_new_steps else []
            more += ["--override", step.override] if step.override else []
            return command(url, "resume", file, step.run_id, *more, *step.limits)
        case "rerun":
            return command(url, "rerun", file, step.run_id)
        case "worker":
            return command(url, "worker", file)

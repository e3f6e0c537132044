"""`Human.*`: what a procedure asks of people, as waits of its run. Each belongs to this run only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from holdfast import Approval, InvalidInput

if TYPE_CHECKING:
    from holdfast import Run


_COMMON: Final = ("message", "timeout")
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "approve": (*_COMMON, "context", "default"),
    "input": (*_COMMON, "placeholder", "default", "options"),
    "review": (*_COMMON, "artifact", "artifact_type", "options", "default"),
    "select": (*_COMMON, "options", "default"),
    "multiple": (*_COMMON, "options", "default"),
    "inputs": (*_COMMON, "items"),
    "notify": ("message", "level", "context"),
    "escalate": (*_COMMON, "context"),
}
"""What each takes; anything else is refused, not ignored."""


class People:
    """The people behind a run. Options come as plain dicts, `message` among them."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def ask(self, verb: str, options: dict[str, Any]) -> Any:
        """One of `Human.*` by its name, if it takes these options."""
        unknown = [option for option in options if option not in OPTIONS[verb]]
        if unknown:
            raise InvalidInput(
                f"Human.{verb} has no option {unknown[0]}; it takes {', '.join(OPTIONS[verb])}"
            )
        return getattr(self, verb)(options)

    def approve(self, options: dict[str, Any]) -> bool:
        """Whether a person approved; `default` (false) if it was not decided within `timeout`."""
        asked = Approval(_message(options, "approve"), show=options.get("context"))
        decided = self._run.wait_any(asked, timeout=options.get("timeout"))
        return bool(options.get("default", False)) if decided is None else bool(decided[1])

    def input(self, options: dict[str, Any]) -> Any:
        """A person's answer; `default` if it was not answered within `timeout`."""
        if "options" in options:
            return self.select(options)
        message, hint = _message(options, "input"), options.get("placeholder")
        prompt = f"{message} ({hint})" if hint else message
        answer = self._run.ask(prompt, timeout=options.get("timeout"))
        return options.get("default") if answer is None else answer

    def review(self, options: dict[str, Any]) -> dict[str, Any]:
        """A person's decision about an artifact: a decision, or {decision, edited_artifact, feedback}."""
        choices = _texts(options.get("options") or ["approve", "edit", "reject"], "review")
        shown = options.get("artifact")
        what = options.get("artifact_type") or "artifact"
        about = "" if shown is None else f"\n{what}: {shown}"
        said = f"{_message(options, 'review')} [{', '.join(choices)}]{about}"
        answer = self._run.ask(said, timeout=options.get("timeout"))
        answer = options.get("default") if answer is None else answer
        found = answer if isinstance(answer, dict) else {"decision": answer}
        if found.get("decision") is not None and found["decision"] not in choices:
            raise InvalidInput(
                f"Human.review was answered with {found['decision']!r}; the options are {', '.join(choices)}"
            )
        return dict(found)

    def select(self, options: dict[str, Any]) -> Any:
        """The option that a person chose."""
        choices = _texts(options.get("options"), "select")
        answer = self._run.ask(
            _message(options, "select"), options=choices, timeout=options.get("timeout")
        )
        return options.get("default") if answer is None else answer

    def multiple(self, options: dict[str, Any]) -> list[Any]:
        """The options that a person chose: a list, or texts with commas between them."""
        choices = _texts(options.get("options"), "multiple")
        prompt = f"{_message(options, 'multiple')} [{', '.join(choices)}]"
        answer = self._run.ask(prompt, timeout=options.get("timeout"))
        answer = options.get("default", []) if answer is None else answer
        chosen = answer if isinstance(answer, list) else [x.strip() for x in str(answer).split(",")]
        wrong = [one for one in chosen if one not in choices]
        if wrong:
            raise InvalidInput(
                f"Human.multiple was answered with {wrong[0]!r}; the options are {', '.join(choices)}"
            )
        return chosen

    def inputs(self, options: dict[str, Any]) -> dict[str, Any]:
        """Several answers, by the ids of their questions."""
        items = options.get("items")
        if not isinstance(items, list) or not all(isinstance(x, dict) and "id" in x for x in items):
            raise InvalidInput("Human.inputs takes items={{id=, message=}, …}")
        return {item["id"]: self._input_of(item) for item in items}

    def _input_of(self, item: dict[str, Any]) -> Any:
        options = {key: value for key, value in item.items() if key != "id"}
        return self.ask("input", {"message": item["id"], **options})

    def notify(self, options: dict[str, Any]) -> None:
        """A line in the run's log for people. The run does not wait."""
        shown = (
            f" {json.dumps(options['context'], ensure_ascii=False)}" if "context" in options else ""
        )
        message = _message(options, "notify")
        self._run.log(f"notify: {message}{shown}", level=str(options.get("level", "info")))

    def escalate(self, options: dict[str, Any]) -> bool:
        """Wait until a person has dealt with it."""
        asked = Approval(f"escalated: {_message(options, 'escalate')}", show=options.get("context"))
        decided = self._run.wait_any(asked, timeout=options.get("timeout"))
        return decided is not None and bool(decided[1])


def _message(options: dict[str, Any], verb: str) -> str:
    message = options.get("message")
    if not isinstance(message, str) or not message.strip():
        raise InvalidInput(f"Human.{verb} needs message=, a string")
    return message


def _texts(values: Any, verb: str) -> list[str]:
    found = [x.get("value", x.get("label")) if isinstance(x, dict) else x for x in values or ()]
    if not found or not all(isinstance(x, str) for x in found):
        raise InvalidInput(f"Human.{verb} needs options=, a list of strings")
    return [str(x) for x in found]

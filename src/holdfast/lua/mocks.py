"""`Mocks { … }` as the mocks that `holdfast test` understands. Plain data and functions; nothing of `testing` is used."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast import InvalidInput

_TOOL: Final = ("returns", "temporal", "conditional", "error")
_AGENT: Final = ("tool_calls", "message", "data", "usage")


def mock_of(name: str, given: Any) -> Any:
    """One mock: of a tool (`returns`, `temporal`, `conditional`, `error`) or of an agent (`tool_calls`, `message` …)."""
    if not isinstance(given, dict) or not given:
        raise InvalidInput(f"the mock of {name} takes one of {', '.join((*_TOOL, *_AGENT))}")
    unknown = [key for key in given if key not in (*_TOOL, *_AGENT)]
    if unknown:
        raise InvalidInput(
            f"the mock of {name} has {unknown[0]!r}; known are {', '.join((*_TOOL, *_AGENT))}"
        )
    _check_kinds(name, given)
    if any(key in given for key in _AGENT):
        return _agent(name, given)
    if "temporal" in given:
        return {"sequence": [_answer(item) for item in _list(name, "temporal", given)]}
    if "conditional" in given:
        cases = [_case(name, item) for item in _list(name, "conditional", given)]
        return {"when": cases, **{k: given[k] for k in ("returns", "error") if k in given}}
    return given


def _check_kinds(name: str, given: Mapping[str, Any]) -> None:
    """Refuse keys that do not go together: only one of them would be used."""
    of_agent, of_tool = ([k for k in keys if k in given] for keys in (_AGENT, _TOOL))
    together = of_tool if {*of_tool} - {"conditional", "returns", "error"} else []
    if "returns" in given and "error" in given:
        together = ["returns", "error"]
    mixed = [of_agent[0], of_tool[0]] if of_agent and of_tool else together
    if len(mixed) > 1:
        raise InvalidInput(
            f"the mock of {name} has {mixed[0]} and {mixed[1]}; it takes one of them"
        )


def _list(name: str, key: str, given: Mapping[str, Any]) -> list[Any]:
    if not isinstance(given[key], list):
        raise InvalidInput(f"the mock of {name}: {key} takes a list")
    return list(given[key])


def _answer(item: Any) -> Any:
    return (
        item
        if isinstance(item, dict) and len(item) == 1 and {*item} <= {"returns", "error"}
        else {"returns": item}
    )


def _case(name: str, item: Any) -> dict[str, Any]:
    if not isinstance(item, dict) or "when" not in item or not isinstance(item["when"], dict):
        raise InvalidInput(f"the mock of {name}: a case takes when={{…}} and returns= or error=")
    unknown = [key for key in item if key not in ("when", "returns", "error")]
    if unknown:
        raise InvalidInput(
            f"the mock of {name}: a case has no option {unknown[0]}; it takes when, returns, error"
        )
    answer = {k: item[k] for k in ("returns", "error") if k in item}
    return {"if": _fits(item["when"]), **answer}


def _fits(wanted: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], bool]:
    return lambda args: all(_matches(args.get(key), value) for key, value in wanted.items())


def _matches(actual: Any, wanted: Any) -> bool:
    if not isinstance(wanted, dict) or "__matcher" not in wanted:
        return bool(actual == wanted)
    value = wanted.get("value")
    match wanted["__matcher"]:
        case "contains":
            return value in actual if isinstance(actual, str | list | dict) else False
        case "matches":
            return isinstance(actual, str) and re.search(str(value), actual) is not None
        case _:
            return bool(actual == value)


def _agent(name: str, given: Mapping[str, Any]) -> Callable[..., Any]:
    """What the model answers: in its first turn the tool calls, then the message."""
    made = given.get("tool_calls") or []
    if not isinstance(made, list) or not all(map(_is_call, made)):
        raise InvalidInput(
            f"the mock of {name}: tool_calls takes a list of {{tool = NAME, args = {{…}}}}"
        )
    calls = [
        {"id": f"call-{n}", "name": call["tool"], "arguments": json.dumps(call.get("args") or {})}
        for n, call in enumerate(made, 1)
    ]
    said = given.get("message") or (json.dumps(given["data"]) if "data" in given else "done")
    usage = given.get("usage") or {}
    if not isinstance(said, str):
        raise InvalidInput(f"the mock of {name}: message must be a text")
    if not isinstance(usage, dict) or not all(isinstance(x, int) for x in usage.values()):
        raise InvalidInput(f"the mock of {name}: usage takes a table of numbers of tokens")
    counts: dict[str, int] = usage
    tokens = {
        "input_tokens": counts.get("prompt_tokens", counts.get("input_tokens", 0)),
        "output_tokens": counts.get("completion_tokens", counts.get("output_tokens", 0)),
    }

    def answer(turn: int) -> Any:
        if calls and turn == 1:
            return {"tool_calls": calls, "usage": tokens, "finish": "tool_calls"}
        return {"text": said, "usage": tokens, "finish": "stop"}

    return answer


def _is_call(given: Any) -> bool:
    return (
        isinstance(given, dict)
        and isinstance(given.get("tool"), str)
        and {*given} <= {"tool", "args"}
    )

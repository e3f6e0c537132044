"""`Mocks { … }` as the mocks that `holdfast test` understands. Plain data and functions; nothing of `testing` is used."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast import InvalidInput

_TOOL: Final = ("returns", "temporal", "conditional", "error")
_AGENT: Final = ("tool_calls", "message", "data", "usage")


def mock_of(name: str, spec: Any) -> Any:
    """One mock: of a tool (`returns`, `temporal`, `conditional`, `error`) or of an agent (`tool_calls`, `message` …)."""
    if not isinstance(spec, dict) or not spec:
        raise InvalidInput(f"the mock of {name} takes one of {', '.join((*_TOOL, *_AGENT))}")
    unknown = [key for key in spec if key not in (*_TOOL, *_AGENT)]
    if unknown:
        raise InvalidInput(
            f"the mock of {name} has no option {unknown[0]!r}; it takes {', '.join((*_TOOL, *_AGENT))}"
        )
    _check_kinds(name, spec)
    if any(key in spec for key in _AGENT):
        return _agent(name, spec)
    if "temporal" in spec:
        return {"sequence": [_answer(item) for item in _list(name, "temporal", spec)]}
    if "conditional" in spec:
        cases = [_case(name, item) for item in _list(name, "conditional", spec)]
        return {"when": cases, **{k: spec[k] for k in ("returns", "error") if k in spec}}
    return spec


def _check_kinds(name: str, spec: Mapping[str, Any]) -> None:
    """Refuse keys that do not go together: only one of them would be used."""
    of_agent, of_tool = ([k for k in keys if k in spec] for keys in (_AGENT, _TOOL))
    together = of_tool if {*of_tool} - {"conditional", "returns", "error"} else []
    if "returns" in spec and "error" in spec:
        together = ["returns", "error"]
    mixed = [of_agent[0], of_tool[0]] if of_agent and of_tool else together
    if len(mixed) > 1:
        raise InvalidInput(
            f"the mock of {name} has {mixed[0]} and {mixed[1]}; it takes one of them"
        )


def _list(name: str, key: str, spec: Mapping[str, Any]) -> list[Any]:
    if not isinstance(spec[key], list):
        raise InvalidInput(f"the mock of {name}: {key} takes a list")
    return list(spec[key])


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


def _fits(expected: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], bool]:
    return lambda args: all(_matches(args.get(key), value) for key, value in expected.items())


def _matches(actual: Any, expected: Any) -> bool:
    if not isinstance(expected, dict) or "__matcher" not in expected:
        return bool(actual == expected)
    value = expected.get("value")
    match expected["__matcher"]:
        case "contains":
            return value in actual if isinstance(actual, str | list | dict) else False
        case "matches":
            return isinstance(actual, str) and re.search(str(value), actual) is not None
        case _:
            return bool(actual == value)


def _agent(name: str, spec: Mapping[str, Any]) -> Callable[..., Any]:
    """What the model answers: in its first turn the tool calls, then the message."""
    made = spec.get("tool_calls") or []
    if not isinstance(made, list) or not all(map(_is_call, made)):
        raise InvalidInput(
            f"the mock of {name}: tool_calls takes a list of {{tool = NAME, args = {{…}}}}"
        )
    calls = [
        {"id": f"call-{n}", "name": call["tool"], "arguments": json.dumps(call.get("args") or {})}
        for n, call in enumerate(made, 1)
    ]
    said = spec.get("message") or (json.dumps(spec["data"]) if "data" in spec else "done")
    usage = spec.get("usage") or {}
    if not isinstance(said, str):
        raise InvalidInput(f"the mock of {name}: message must be a string")
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


def _is_call(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("tool"), str)
        and {*value} <= {"tool", "args"}
    )

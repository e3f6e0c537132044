"""What providers accept as a dialogue, checked as strictly as the strictest of them does.

The rules are those of the public API references: what one of them refuses with a 400 is refused here.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


_THOUGHTS = ("thinking", "redacted_thinking")


class Refused(Exception):
    """A provider would answer this with 400."""


def _need(condition: object, what: str) -> None:
    if not condition:
        raise Refused(what)


def check_openai(messages: list[dict[str, Any]]) -> None:
    """Roles, contents, and that each tool call is answered at once, each answer called for."""
    _need(messages, "messages is empty")
    waiting: set[str] = set()
    for i, message in enumerate(messages):
        role = message.get("role")
        _need(role in ("system", "developer", "user", "assistant", "tool"), f"role {role!r} at {i}")
        if role == "tool":
            _need(
                set(message) == {"role", "tool_call_id", "content"}, f"fields of tool message {i}"
            )
            _need(message["tool_call_id"] in waiting, f"message {i} answers no call")
            _need(isinstance(message["content"], str), f"content of {i}")
            waiting.remove(message["tool_call_id"])
            continue
        _need(not waiting, f"calls {waiting} were not answered before message {i}")
        calls = message.get("tool_calls")
        if calls is not None:
            _need(role == "assistant" and calls, f"tool calls at {i}")
            waiting = {_check_openai_call(call) for call in calls}
            _need(len(waiting) == len(calls), f"two calls of one id at {i}")
            _need(message["content"] is None or message["content"], f"empty content at {i}")
        else:
            _need(isinstance(message["content"], str) and message["content"], f"content of {i}")
    _need(not waiting, f"calls {waiting} are not answered")


def _check_openai_call(call: dict[str, Any]) -> str:
    _need(call["type"] == "function" and call["id"], "a tool call needs a type and an id")
    _need(_NAME.fullmatch(call["function"]["name"]), f"tool name {call['function']['name']!r}")
    _need(isinstance(json.loads(call["function"]["arguments"]), dict), "arguments are no object")
    return str(call["id"])


def thinking(text: str) -> dict[str, Any]:
    """A thinking block with the only signature that `check_anthropic` accepts for this text."""
    signature = hashlib.sha256(text.encode()).hexdigest()
    return {"type": "thinking", "thinking": text, "signature": signature}


def check_anthropic(prompt: dict[str, Any]) -> None:
    """Alternation, blocks that say something, and tool results right after their uses."""
    messages = prompt["messages"]
    _need(messages, "messages is empty")
    _need("system" not in prompt or prompt["system"].strip(), "system is empty")
    _need(messages[0]["role"] == "user", "the first message must be the user's")
    waiting: set[str] = set()
    seen: set[str] = set()
    thinks = prompt.get("thinking", {}).get("type") == "enabled"
    for i, message in enumerate(messages):
        _need(message["role"] == ("user", "assistant")[i % 2], f"roles do not alternate at {i}")
        _need(isinstance(message["content"], list) and message["content"], f"content of {i}")
        uses, results = _check_blocks(message, i)
        _need(set(results) == waiting, f"message {i} answers {results}, asked were {waiting}")
        _need(len(results) == len(set(results)), f"a call is answered twice at {i}")
        kinds = [block["type"] for block in message["content"]]
        if thinks and uses:
            _need(kinds[0] in _THOUGHTS, f"message {i} must start with its thinking block")
        _need(kinds == sorted(kinds, key="tool_result".__ne__), f"results do not come first at {i}")
        _need(len(set(uses)) == len(uses) and not seen & set(uses), f"tool_use ids repeat at {i}")
        seen |= set(uses)
        waiting = set(uses)
    _need(not waiting, f"calls {waiting} are not answered")
    last = messages[-1]
    if last["role"] == "assistant" and last["content"][-1]["type"] == "text":
        _need(last["content"][-1]["text"] == last["content"][-1]["text"].rstrip(), "trailing space")


def _check_blocks(message: dict[str, Any], i: int) -> tuple[list[str], list[str]]:
    uses, results = [], []
    for block in message["content"]:
        match block["type"]:
            case "thinking":
                _need(block == thinking(block["thinking"]), f"signature of a block in {i}")
            case "redacted_thinking":
                _need(set(block) == {"type", "data"} and block["data"], f"redacted block in {i}")
            case "text":
                _need(block["text"].strip(), f"empty text block in {i}")
            case "tool_use":
                _need(message["role"] == "assistant", f"a user cannot use tools, at {i}")
                _need(_NAME.fullmatch(block["id"]), f"id {block['id']!r}")
                _need(_NAME.fullmatch(block["name"]), f"tool name {block['name']!r}")
                _need(isinstance(block["input"], dict), "input is not an object")
                uses.append(block["id"])
            case "tool_result":
                _need(message["role"] == "user", f"an assistant cannot answer tools, at {i}")
                _need(block.get("content", "x"), f"empty tool result in {i}")
                results.append(block["tool_use_id"])
            case other:
                raise Refused(f"block of type {other!r}")
    return uses, results

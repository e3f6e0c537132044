"""What is wrong with a `.tac` file, by line: syntax, declarations and schemas, stages, unknown globals.

The declarations are evaluated; the rest is read from the text, with a lexer and without scopes: a name that is local
anywhere in the file counts as known everywhere, so nothing right is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast import InvalidInput
from holdfast.lua.convert import text
from holdfast.lua.ops import Ops
from holdfast.lua.program import Program
from holdfast.lua.templates import names_in
from holdfast.lua.vm import LuaError, LuaLimits, Vm

_KEYWORDS: Final = frozenset(
    re.findall(
        r"\w+",
        "and break do else elseif end false for function goto if in local nil not or repeat return then true until while",
    )
)
_TOKEN: Final = re.compile(
    r"""(?P<skip>--\[(?P<ceq>=*)\[.*?\](?P=ceq)\]|--[^\n]*|\s+)
      | (?P<long>\[(?P<eq>=*)\[.*?\](?P=eq)\])
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<number>0[xX][\w.]+|\d[\w.]*(?:(?<=[eE])[+-]?\d+)?)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<op>\.\.\.|\.\.|::|==|~=|<=|>=|//|.)""",
    re.VERBOSE | re.DOTALL,
)
_PLACE: Final = re.compile(r"(?P<file>[^\s:]+):(?P<line>\d+): (?P<says>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LuaProblem:
    """One thing that is wrong."""

    line: int
    says: str


@dataclass(frozen=True, slots=True)
class _Word:
    kind: str
    text: str
    line: int


def problems_of(path: Path) -> list[LuaProblem]:
    """What is wrong with a file, in the order of its lines."""
    try:
        program = Program(path)
        program.main  # noqa: B018 - or InvalidInput
    except InvalidInput as error:
        return [_problem(error, path.name)]
    words = list(_words(program.source.decode("utf-8", "replace")))
    found = [*_unknown_globals(words, program), *_stages(words, program), *_templates(program)]
    return sorted(set(found), key=lambda p: (p.line, p.says))


def _problem(error: InvalidInput, file: str) -> LuaProblem:
    cause = error.__cause__
    text, stack = (
        (cause.message, cause.lua_traceback) if isinstance(cause, LuaError) else (str(error), "")
    )
    place = _PLACE.match(text)
    if place is not None and place["file"] == file:
        return LuaProblem(int(place["line"]), place["says"])
    # An error in a module that it requires.
    required = re.search(rf"{re.escape(file)}:(\d+): ", stack)
    return LuaProblem(int(required[1]) if required else 1, text)


def _words(source: str) -> Iterator[_Word]:
    line = 1
    for found in _TOKEN.finditer(source):
        kind = found.lastgroup or ""
        kind = (
            "skip" if found["skip"] is not None else "string" if found["long"] is not None else kind
        )
        if kind != "skip":
            yield _Word(kind, found[0], line)
        line += found[0].count("\n")


# ── globals ──────────────────────────────────────────────────────────────────────────────────


def _unknown_globals(words: list[_Word], program: Program) -> Iterator[LuaProblem]:
    known = _known_names(program) | _assigned(words) | _KEYWORDS
    for n, word in enumerate(words):
        before = words[n - 1].text if n else ""
        after = words[n + 1].text if n + 1 < len(words) else ""
        is_field = before in (".", ":", "goto", "::") or (
            after == "=" and before in ("{", ",", ";")
        )
        if word.kind == "name" and word.text not in known and not is_field:
            yield LuaProblem(
                word.line, f"unknown global {word.text!r}; declare it with local, or assign it"
            )


def _known_names(program: Program) -> set[str]:
    vm = Vm(Ops(program, "here").table(), LuaLimits())
    return {text(name) for name in vm.language[b"names"]().values()} | {"input", "_ENV", "self"}


def _assigned(words: list[_Word]) -> set[str]:
    """Every name that the file declares or assigns, wherever."""
    found: set[str] = set()
    for n, word in enumerate(words):
        if word.text in ("local", "for", "function"):
            found |= set(_declared_after(words, n))
        elif word.kind == "name" and _is_assigned(words, n):
            found.add(word.text)
    return found


def _is_assigned(words: list[_Word], n: int) -> bool:
    """Whether `=` comes after it, or after a list of names that it begins: `a, b = 1, 2`."""
    is_field = n > 0 and words[n - 1].text in (".", ":", "{")
    after = [word.text for word in words[n + 1 : n + 60]]
    while after[:1] == [","] and after[1:2] and after[1].isidentifier():
        after = after[2:]
    return not is_field and after[:1] == ["="]


def _declared_after(words: list[_Word], n: int) -> Iterator[str]:
    """The names after `local`, `for` or `function`: of a function also its parameters."""
    ends = {"local": ("=", "function"), "for": ("=", "in"), "function": (")",)}[words[n].text]
    for word in words[n + 1 : n + 60]:
        if word.text in ends or word.text in _KEYWORDS - {"function"}:
            return
        if word.kind == "name":
            yield word.text
        elif word.text not in (",", "(", ".", ":", "<", ">", "..."):
            return


# ── stages, templates ────────────────────────────────────────────────────────────────────────


def _stages(words: list[_Word], program: Program) -> Iterator[LuaProblem]:
    for n, word in enumerate(words[:-4]):
        called = [w.text for w in words[n : n + 4]]
        if word.text == "Stage" and called[1] == "." and called[2] in ("set", "advance", "is"):
            given = words[n + 4] if called[3] == "(" else words[n + 3]
            if given.kind == "string" and given.text[1:-1] not in program.stages:
                known = ", ".join(program.stages) or "none"
                yield LuaProblem(
                    given.line, f"stage {given.text[1:-1]!r} is not declared; Stages has {known}"
                )


def _templates(program: Program) -> Iterator[LuaProblem]:
    main = program.declared.procedures["main"]
    inputs = {name for p in program.declared.procedures.values() for name in p.fields}
    for agent in program.declared.agents.values():
        for template in (agent.system_prompt, agent.initial_message):
            for name in (*names_in(template, "input"), *names_in(template, "params")):
                if inputs and name not in inputs:
                    yield LuaProblem(
                        main.line,
                        f"agent {agent.name} uses {{input.{name}}}, which no procedure declares",
                    )
        for tool in agent.tools:
            if tool not in program.declared.tools:
                yield LuaProblem(
                    main.line, f"agent {agent.name} names the tool {tool!r}, which is not declared"
                )

"""The arguments of tools as typed values, and JSON Schemas made from them.

A tool's arguments are checked against the same type that its schema is made from, so both agree.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.errors import InvalidInput
from holdfast.store.base import STATUSES

ID: Final = r"^[A-Za-z0-9][A-Za-z0-9._:@~=+-]{0,199}$"

TaskId = Annotated[str, Meta(pattern=ID, description="The id of a task.")]
AgentId = Annotated[str, Meta(min_length=1, max_length=200, description="The name of an agent.")]
Version = Annotated[int, Meta(ge=0, description="A version, as `get_task` returns it.")]
Text = Annotated[str, Meta(max_length=8000)]
Key = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=200,
        description="Makes a retry harmless: the same key has an effect once. "
        "It can also be given in `_meta`, as `holdfast/idempotency-key`.",
    ),
]
Limit = Annotated[int, Meta(ge=1, le=100, description="How many to return.")]
Cursor = Annotated[str, Meta(max_length=100, description="`next` of the previous page.")]


class Arguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Base of all arguments."""


class KeyedArguments(Arguments, kw_only=True):
    """Arguments of a tool that changes something."""

    idempotency_key: Key | None = None


class FactInput(msgspec.Struct, forbid_unknown_fields=True):
    """A fact: a key, a JSON value, and where it is from."""

    key: Annotated[str, Meta(min_length=1, max_length=200)]
    value: Any
    source: Annotated[str, Meta(max_length=500)] = ""


class PlanStepInput(msgspec.Struct, forbid_unknown_fields=True):
    """A step of a plan. `status` is pending, doing or done."""

    name: Annotated[str, Meta(min_length=1, max_length=500)]
    status: Annotated[str, Meta(max_length=50)] = "pending"


Facts = Annotated[list[FactInput], Meta(max_length=200, description="Facts to append.")]
Questions = Annotated[list[Text], Meta(max_length=100)]


class StartTask(KeyedArguments, kw_only=True):
    input: Annotated[dict[str, Any], Meta(description="The agent's arguments, by name.")] = {}
    agent_id: AgentId | None = None
    task_id: TaskId | None = None


class OneTask(Arguments, kw_only=True):
    task_id: TaskId


class ResumeTask(KeyedArguments, kw_only=True):
    task_id: TaskId


class ListTasks(Arguments, kw_only=True):
    agent_id: AgentId | None = None
    status: Annotated[str, Meta(description=f"One of {', '.join(STATUSES)}.")] = ""
    limit: Limit = 20
    cursor: Cursor = ""


class ListDue(Arguments, kw_only=True):
    handed_over_to_me: Annotated[
        bool, Meta(description="Only tasks that were handed over to you.")
    ] = False
    limit: Limit = 20
    cursor: Cursor = ""


class WaitForChange(Arguments, kw_only=True):
    task_id: TaskId
    after_version: Version
    timeout_seconds: Annotated[float, Meta(ge=0, le=60)] = 20.0


class PatchTask(KeyedArguments, kw_only=True):
    task_id: TaskId
    expected_version: Version
    state: Annotated[dict[str, Any], Meta(description="New values of state keys.")] = {}
    delete: Annotated[list[str], Meta(max_length=200, description="State keys to delete.")] = []
    plan: (
        Annotated[
            list[PlanStepInput | str],
            Meta(max_length=200, description="A plan that replaces the old one."),
        ]
        | UnsetType
    ) = UNSET
    facts: Facts = []
    add_questions: Questions = []
    close_questions: Questions = []
    notes: dict[str, Any] = {}
    add_flags: Questions = []
    clear_flags: Questions = []
    why: Annotated[str, Meta(max_length=500, description="The reason, recorded in the log.")] = ""


class AppendFacts(KeyedArguments, kw_only=True):
    task_id: TaskId
    facts: Annotated[list[FactInput], Meta(min_length=1, max_length=200)]


class AddQuestions(KeyedArguments, kw_only=True):
    task_id: TaskId
    questions: Annotated[list[Text], Meta(min_length=1, max_length=100)]


class AnswerQuestion(KeyedArguments, kw_only=True):
    task_id: TaskId
    value: Annotated[
        Any, Meta(description="The answer; one of the options if the question has any.")
    ]
    request: Annotated[
        str, Meta(max_length=200, description="Which question, if the task asks several.")
    ] = ""


class SignalTask(KeyedArguments, kw_only=True):
    task_id: TaskId
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    value: Any = None


class HandOverTask(KeyedArguments, kw_only=True):
    task_id: TaskId
    to_agent: Annotated[str, Meta(pattern=ID, max_length=100, description="Who should continue.")]
    note: Annotated[Text, Meta(description="What the next agent should know.")]
    expected_version: Version | None = None


A = TypeVar("A", bound=Arguments)


def read(arguments: Any, kind: type[A]) -> A:
    """Arguments as their type, or InvalidInput that names the path."""
    try:
        return msgspec.convert({} if arguments is None else arguments, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidInput(f"wrong arguments: {error}") from None


def input_schema(kind: type[Arguments]) -> dict[str, Any]:
    """The JSON Schema of a tool's arguments: an object, with its parts under $defs."""
    (ref,), parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    name = ref["$ref"].removeprefix("#/$defs/")
    own = dict(parts.pop(name))
    own.pop("title", None)
    own.pop("description", None)
    own["additionalProperties"] = False
    return {**own, **({"$defs": parts} if parts else {})}


# ── results ──────────────────────────────────────────────────────────────────────────────────


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    properties = {**required, **(optional or {})}
    return {"type": "object", "properties": properties, "required": list(required)}


_TEXT: Final[dict[str, Any]] = {"type": "string"}
_TEXT_OR_NULL: Final[dict[str, Any]] = {"type": ["string", "null"]}
_VERSION: Final[dict[str, Any]] = {"type": "integer", "minimum": 0}

TASK: Final = _object(
    {
        "notice": _TEXT,
        "task_id": _TEXT,
        "agent_id": _TEXT,
        "version": _VERSION,
        "status": _TEXT,
        "position": {"type": "object"},
    },
    {
        "goal": {},
        "plan": {},
        "known_facts": {},
        "open_questions": {},
        "artifacts": {},
        "risk_flags": {},
        "budget": {},
        "waiting_for": {},
        "handed_over": {},
        "state": {},
        "result": {},
        "error": {},
    },
)
"""Values may be cut (`{"cut": true, "rest": uri}`), so most have no type here."""

LISTED: Final = _object(
    {"task_id": _TEXT, "agent_id": _TEXT, "status": _TEXT, "waiting_for": _TEXT, "uri": _TEXT},
    {
        "due_at": _TEXT_OR_NULL,
        "created_at": _TEXT_OR_NULL,
        "updated_at": _TEXT_OR_NULL,
        "version": _VERSION,
        "handed_over": {"type": ["object", "null"]},
    },
)
TASKS: Final = _object({"tasks": {"type": "array", "items": LISTED}, "next": _TEXT_OR_NULL})
STARTED: Final = _object(
    {
        "task_id": _TEXT,
        "agent_id": _TEXT,
        "status": _TEXT,
        "uri": _TEXT,
        "is_new": {"type": "boolean"},
    }
)
CHANGED: Final = _object(
    {"changed": {"type": "boolean"}, "version": _VERSION, "status": _TEXT, "events": _TEXT}
)
PATCHED: Final = _object(
    {
        "task_id": _TEXT,
        "version": _VERSION,
        "status": _TEXT,
        "uri": _TEXT,
        "is_new": {"type": "boolean"},
    }
)
STATUS: Final = _object({"task_id": _TEXT, "status": _TEXT, "version": _VERSION, "uri": _TEXT})

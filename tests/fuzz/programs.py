"""Random agents as plain data: a program is a tree of lists, made from a seed, and printed as it is.

`generate` makes a program, `Shape`s are patterns that are known to be hard (each numbered fault of the issue has
one), and `shown` prints a program for people. `interpret.py` runs it.

A statement is `[word, …]`. Bodies are lists of statements:

    ["step"] ["slow", ms] ["keyed"] ["checked"] ["once"] ["tx"] ["undoable"] ["flaky", fails, delay] ["failing"]
    ["random"] ["uuid"] ["now"] ["state", op] ["patched"] ["checkpoint"] ["raise"]
    ["ask", timeout] ["approve", timeout] ["signal", name, timeout] ["sleep", seconds] ["wait_any", [kinds], timeout]
    ["loop", rounds, body] ["if", body, body] ["try", body, body] ["child", number]
    ["map" | "gather" | "group" | "race", [body, …]] ["timeout", seconds, body]

Only shapes have these: calls that fail at first, swallow their cancellation, clean up after it or never return; an
iteration that fails; code that cleans up and fails, leaves a task behind, notifies a line that waits for another, awaits
something that does not come in a process that has lost the run, or runs in a process that may stand still there:

    ["unlucky", fails] ["swallow", ms] ["cleans", ms, cleaning ms] ["endless"] ["raise_in", iteration]
    ["clean_up", body, body] ["leave", body] ["notify", [body, body]] ["hang"] ["stall", seconds]

Others use more of asyncio: a semaphore or a lock, a queue with two consumers, as_completed, wait_for, wait with a
timeout, shield, and to_thread:

    ["limited", places, [body, …]] ["queue", [body, …]] ["completed", [body, …]] ["within", seconds, body]
    ["until", seconds, body] ["shielded", seconds, body] ["thread", [name, …]]
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, TypedDict

Statement = list[Any]
Body = list[Statement]
Features = frozenset[str]

PARALLEL = ("map", "gather", "group", "race")
WAITS = ("ask", "approve", "signal", "sleep", "wait_any")
SIGNALS = ("left", "right")
STRATEGIES = ("every_step", "every_iteration", "on_state_change")
DEPTH_MAX = 3


class Program(TypedDict):
    """An agent: how it is declared, what it does, the agents that it calls, and what people do to it."""

    name: str
    shape: str
    kind: str
    """sync, async, loop, async_loop, llm or async_llm."""
    options: dict[str, Any]
    body: Body
    children: list[Program]
    people: dict[str, Any]


class Generator:
    """Draws programs. One for each program, so that a program depends on its own seed only."""

    def __init__(self, seed: str, name: str, features: Features) -> None:
        self.dice = random.Random(seed)
        self.name = name
        self.has = features
        self.is_async = self.dice.random() < 0.5
        self.children: list[Program] = []
        self.in_loop = False
        self.depth = 0
        """0 for a run that a person started, 1 for its child …"""

    # ── choices ──────────────────────────────────────────────────────────────────────────

    def chance(self, probability: float) -> bool:
        return self.dice.random() < probability

    def one_of(self, *choices: Any) -> Any:
        return self.dice.choice(choices)

    def any_of(self, features: Iterable[str]) -> list[str]:
        return [name for name in features if name in self.has]

    # ── statements ───────────────────────────────────────────────────────────────────────

    def external(self, branch: bool) -> Statement:
        """A call with an effect."""
        found = self.any_of(("keyed", "checked", "tx", "once"))
        if branch and "branch_tx" not in self.has:
            found = [name for name in found if name != "tx"]
        if branch and "branch_waits" not in self.has:  # after a kill, a person must decide
            found = [name for name in found if name != "once"]
        return [self.dice.choice(found)] if found else ["step"]

    def plain(self, branch: bool) -> Statement:
        """A call or a note that never waits."""
        words: list[Statement] = [["step"], ["step"], ["slow", self.one_of(1, 5, 20)]]
        words += [self.external(branch) for _ in range(3)]
        if "random" in self.has:
            words += [["random"], ["uuid"], ["now"]]
        if "retries" in self.has:
            far = not branch or "branch_waits" in self.has  # such a wait suspends the run
            words.append(["flaky", self.one_of(1, 2), self.one_of(0.005, 0.12 if far else 0.01)])
        if "undo" in self.has:
            words.append(["undoable"])
        return self.dice.choice(words)

    def note(self) -> Statement:
        """What may stand only in the main line: state is not defined between branches."""
        words: list[Statement] = [["patched"]]
        if not self.in_loop:  # a loop ends its iterations by itself
            words.append(["checkpoint"])
        if "state" in self.has:
            words += [["state", op] for op in ("set", "increment", "append", "read")]
        return self.dice.choice(words)

    def wait(self) -> Statement:
        kinds = self.any_of(("questions", "approvals", "signals", "timers", "wait_any"))
        timeout = self.one_of(None, None, None, 0.02, 0.3)
        match self.dice.choice(kinds) if kinds else "":
            case "questions":
                return ["ask", timeout]
            case "approvals":
                return ["approve", timeout]
            case "signals":
                return ["signal", self.dice.choice(SIGNALS), timeout]
            case "timers":
                return ["sleep", self.one_of(0.005, 0.03, 0.15, 0.4)]
            case "wait_any":
                among = self.dice.sample(["left", "right", "approval", "question", "timer"], 2)
                return ["wait_any", among, timeout]
            case _:
                return ["step"]

    def statement(self, level: int, *, branch: bool) -> Statement:
        """Any statement; `branch` if other branches run at the same time."""
        words = ["plain"] * 5
        if not branch:
            words.append("note")
        if self._may_wait(branch):
            words += ["wait"] * 2
        if level < DEPTH_MAX:
            if "loops" in self.has:
                words.append("loop")
            if "random" in self.has:
                words.append("if")
            if "failures" in self.has:
                words.append("try")
            if self._forks():
                words += ["parallel"] * 2
            if self.is_async and "timeouts" in self.has:
                words.append("timeout")
        if self._may_call_child(branch):
            words.append("child")
        match self.dice.choice(words):
            case "plain":
                return self.plain(branch)
            case "note":
                return self.note()
            case "wait":
                return self.wait()
            case "loop":
                return ["loop", self.one_of(1, 2, 3), self.body(level + 1, 2, branch=branch)]
            case "if":
                branches = [self.body(level + 1, 2, branch=branch) for _ in range(2)]
                return ["if", *branches]
            case "try":
                tried = [
                    *self.body(level + 1, 1, branch=branch),
                    self.one_of(["failing"], ["raise"]),
                ]
                return ["try", tried, self.body(level + 1, 1, branch=branch)]
            case "parallel":
                return self.parallel(level)
            case "timeout":
                seconds = self.one_of(0.002, 0.02, 0.1)
                return ["timeout", seconds, self.body(level + 1, 2, branch=True)]
            case _:
                return self.child()

    def _may_wait(self, branch: bool) -> bool:
        allowed = not branch or "branch_waits" in self.has
        return allowed and (not self.depth or "child_waits" in self.has)

    def _may_call_child(self, branch: bool) -> bool:
        allowed = "children" in self.has and (not branch or "branch_children" in self.has)
        return allowed and self.depth < 2 and len(self.children) < 2

    def _forks(self) -> list[str]:
        if not self.is_async:
            return self.any_of(("map",))
        found = self.any_of(("map", "gather", "group"))
        return [*found, "race"] if "races" in self.has else found

    def parallel(self, level: int) -> Statement:
        how = self.dice.choice(self._forks())
        bodies = [self.body(level + 1, 2, branch=True) for _ in range(self.one_of(2, 2, 3))]
        return [how, bodies]

    def body(self, level: int, limit: int, *, branch: bool = False) -> Body:
        return [self.statement(level, branch=branch) for _ in range(self.dice.randint(1, limit))]

    # ── children ─────────────────────────────────────────────────────────────────────────

    def add_child(self, body: Body | None = None, **options: Any) -> Statement:
        """A child with this body, or with a random one; the statement that calls it."""
        below = Generator("", f"{self.name}c{len(self.children)}", self.has)
        below.dice, below.is_async, below.depth = self.dice, self.is_async, self.depth + 1
        made = below.program("child", body) if body is not None else below.random_program()
        made["options"].update(options)
        self.children.append(made)
        return ["child", len(self.children) - 1]

    def child(self) -> Statement:
        return self.add_child()

    # ── programs ─────────────────────────────────────────────────────────────────────────

    def program(self, shape: str, body: Body, kind: str = "") -> Program:
        color = "async" if self.is_async else "sync"
        return {
            "name": self.name,
            "shape": shape,
            "kind": kind or color,
            "options": self.options(),
            "body": body,
            "children": self.children,
            "people": {},
        }

    def options(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if "checkpoints" in self.has:
            found["checkpoint"] = self.dice.choice(STRATEGIES)
        if "undo" in self.has and self.chance(0.3):
            found["on_failure"] = "undo"
        return found

    def random_program(self) -> Program:
        """Anything."""
        kinds = ["plain"] * 6
        if "loop_agents" in self.has:
            kinds.append("loop")
        if "llm" in self.has:
            kinds.append("llm")
        kind = self.dice.choice(kinds)
        if kind == "llm":
            return self.llm_program("llm")
        self.in_loop = kind == "loop"
        body = self.body(0, 5 if not self.depth else 3)
        made = self.program(
            "random", body, ("async_" if self.is_async else "") + kind if kind != "plain" else ""
        )
        self._restrict(made)
        return made

    def _restrict(self, program: Program) -> None:
        """Now and then a deadline, a budget, or approval by risk, where features allow it."""
        has_children = bool(program["children"])
        may_limit = "limits" in self.has and (not has_children or "child_limits" in self.has)
        if may_limit and self.chance(0.1):
            program["options"]["deadline"] = self.one_of(0.2, 0.6)
        elif may_limit and self.chance(0.1):
            program["options"]["max_steps"] = self.dice.randint(2, 8)
        waits = not self.depth or "child_waits" in self.has
        branch_waits = "branch_waits" in self.has or not has_word(
            program["body"], (*PARALLEL, "timeout")
        )
        may_gate = "approvals" in self.has and waits and branch_waits
        may_gate = may_gate and (not has_children or "child_approvals" in self.has)
        if may_gate and self.chance(0.2):
            program["options"]["approve"] = ["external_action"]
            if self.chance(0.2):
                program["options"]["approval_ttl"] = 0.3

    def llm_program(self, shape: str) -> Program:
        """A model that calls tools: a body is a list of turns, a turn a list of calls."""
        tools = ["llm_step", *(f"llm_{name}" for name in self.any_of(("keyed", "once")))]
        most = 3 if "map" in self.has else 1
        turns = [
            [[self.dice.choice(tools)] for _ in range(self.dice.randint(1, most))]
            for _ in range(self.dice.randint(1, 3))
        ]
        made = self.program(shape, turns, "async_llm" if self.is_async else "llm")
        waits = not self.depth or "child_waits" in self.has
        may_gate = "approvals" in self.has and waits
        may_gate = may_gate and (most == 1 or "branch_waits" in self.has)
        if may_gate and self.chance(0.4):
            made["options"]["approve"] = ["external_action"]
        return made


def has_word(body: Any, words: Iterable[str]) -> bool:
    """Whether a statement with one of these words is anywhere in a body."""
    if isinstance(body, list):
        return bool(body and body[0] in words) or any(has_word(part, words) for part in body)
    return False


# ── shapes ───────────────────────────────────────────────────────────────────────────────────

Make = Callable[[Generator], Program]


def _join(g: Generator) -> str:
    """A way to run branches and wait for all of them."""
    return str(g.one_of("gather", "group", "map") if g.is_async else "map")


def _ask_for(g: Generator) -> Statement:
    """Something that only a person can end."""
    return list(g.one_of(["ask", None], ["signal", "left", None], ["approve", None]))


def decision_while_working(g: Generator) -> Program:
    """Item 1: a decision comes while another branch is working."""
    slow: Statement = ["slow", g.one_of(60, 150, 250)]
    if g.chance(0.4):
        made = g.program("decision_while_working", [[_join(g), [[["keyed"]], [slow]]], ["keyed"]])
        made["options"]["approve"] = ["external_action"]
        return made
    return g.program("decision_while_working", [[_join(g), [[_ask_for(g)], [slow]]], ["keyed"]])


def model_with_two_tools(g: Generator) -> Program:
    """Item 1: a model calls a tool that needs approval and one that takes its time."""
    turns: Body = [[["llm_keyed"], ["llm_slow"]], [["llm_step"]]]
    made = g.program("model_with_two_tools", turns, "async_llm" if g.is_async else "llm")
    made["options"]["approve"] = ["external_action"]
    return made


def question_and_child(g: Generator) -> Program:
    """Items 2 and 10: the parent waits, its child waits, and both get what they wait for at once."""
    child = g.add_child([_ask_for(g), ["step"]])
    made = g.program("question_and_child", [[_join(g), [[_ask_for(g)], [child]]], ["keyed"]])
    made["people"]["burst"] = True
    return made


def waiting_child(g: Generator) -> Program:
    """Items 2 and 10: a child that waits, without other branches."""
    child = g.add_child([["step"], _ask_for(g), ["keyed"]])
    made = g.program("waiting_child", [["step"], child, ["keyed"]])
    made["people"]["burst"] = True
    return made


def group_with_child(g: Generator) -> Program:
    """Item 3: in a TaskGroup a child must wait while its sibling asks a question."""
    g.is_async = True
    child = g.add_child([_ask_for(g), ["step"]])
    return g.program("group_with_child", [["group", [[_ask_for(g)], [child]]], ["step"]])


def limited_parent(g: Generator) -> Program:
    """Item 4: a parent is cancelled, or comes to its limit, while its child works."""
    work: Body = [["loop", 10, [["keyed"], ["slow", g.one_of(30, 80)]]]]
    made = g.program("limited_parent", [g.add_child(work), ["step"]])
    match g.one_of("deadline", "budget", "cancel"):
        case "deadline":
            made["options"]["deadline"] = 0.25
        case "budget":
            made["options"]["max_steps"] = 4
        case _:
            made["people"]["cancel"] = g.one_of(0.1, 0.25)
    return made


def gated_parent(g: Generator) -> Program:
    """Item 5: the parent's tools need approval; does its child's tool?"""
    child = g.add_child([["step"], [g.one_of("keyed", "once")]])
    made = g.program("gated_parent", [child, ["step"]])
    if g.chance(0.5):
        turns: Body = [[["llm_helper"]], [["llm_step"]]]
        made = g.program("gated_parent", turns, "async_llm" if g.is_async else "llm")
    made["options"]["approve"] = ["external_action"]
    return made


def branches_and_patches(g: Generator) -> Program:
    """Items 6 and 7: several branches append while events come from outside."""
    gap: Statement = ["slow", g.one_of(1, 3, 6)]
    chain: Body = [["uuid"], gap, ["keyed"], ["random"], gap, ["step"], ["keyed"]]
    count = g.one_of(3, 4, 6)
    body: Body = [["loop", 3, [[_join(g), [chain] * count]]]]
    made = g.program("branches_and_patches", body)
    made["people"]["storm"] = True
    return made


def race_after_join(g: Generator) -> Program:
    """Item 8: the loser of a race had passed a join."""
    g.is_async = True
    join: Statement = [g.one_of("gather", "group"), [[["step"]], [["step"]]]]
    loser: Body = [join, ["step"], ["slow", 80], ["keyed"]]
    winner: Body = [["slow", g.one_of(20, 40)]]
    bodies = [loser, winner] if g.chance(0.5) else [winner, loser]
    return g.program("race_after_join", [["race", bodies], _ask_for(g), ["keyed"]])


def timer_and_signal(g: Generator) -> Program:
    """Item 13: a timer and a signal in parallel; each must end the wait of its own branch."""
    bodies: list[Body] = [[["sleep", 0.2], ["step"]], [["signal", "left", None]]]
    g.dice.shuffle(bodies)
    made = g.program("timer_and_signal", [[_join(g), bodies], ["step"]])
    made["people"]["hesitate"] = g.one_of(0.0, 0.5, 0.5)
    return made


def timeout_in_commit(g: Generator) -> Program:
    """Item 14: the code gives up at a moment when a receipt is being committed."""
    g.is_async = True
    calls: Body = [["loop", 8, [[g.one_of("keyed", "step")]]]]
    seconds = g.dice.uniform(0.001, 0.02)
    if g.chance(0.5):
        return g.program("timeout_in_commit", [["loop", 3, [["timeout", seconds, calls]]]])
    failing: Body = [["try", [["group", [calls, [["slow", 3], ["failing"]]]]], [["step"]]]]
    return g.program("timeout_in_commit", failing)


def timeout_at_join(g: Generator) -> Program:
    """A timeout that had not fired does so on a slow replay, when the last branch has ended: it is too early there."""
    g.is_async = True
    join: Statement = [g.one_of("gather", "group", "map"), [[["step"], ["step"]], [["step"]]]]
    rounds: Body = []
    for _ in range(4):
        inside: Body = [join, *([["signal", "left", None]] if g.chance(0.3) else [])]
        limited: Statement = ["timeout", g.dice.uniform(0.02, 0.15), inside]
        rounds += [["try", [limited, ["failing"]], [["step"]]], ["keyed"]]
    return g.program("timeout_at_join", [*rounds, _ask_for(g), ["keyed"]])


def timeout_before_call(g: Generator) -> Program:
    """On resume, a timeout fires before its call may begin: the call waits until the code has what is recorded."""
    g.is_async = True
    rounds: Body = []
    for _ in range(4):
        seconds = g.dice.uniform(0.01, 0.03)  # all runs of the process stand still: not for long
        late: Statement = ["timeout", seconds, [["stall", 1.5 * seconds], ["endless"]]]
        others: list[Body] = [[["step"]] for _ in range(g.one_of(1, 1, 2))]
        rounds.append([g.one_of("gather", "group"), [[late, ["step"]], *others]])
    made = g.program("timeout_before_call", [*rounds, ["keyed"]])
    made["options"]["checkpoint"] = "every_step"
    return made


def more_of_asyncio(g: Generator) -> Program:
    """What code often uses to limit or share its work, in the middle of other branches."""
    g.is_async = True

    def some(*, waits: bool = False) -> Body:
        calls: Body = [
            g.one_of(["step"], ["keyed"], ["slow", g.one_of(1, 5, 20)], ["uuid"])
            for _ in range(g.one_of(1, 2, 3))
        ]
        return [*calls, _ask_for(g), ["step"]] if waits and g.chance(0.3) else calls

    def one() -> Statement:
        bodies = [some(waits=True) for _ in range(g.one_of(2, 3, 5))]
        return list(
            g.one_of(
                ["limited", g.one_of(1, 2), bodies],
                ["queue", bodies],
                ["completed", bodies],
                ["within", g.one_of(0.005, 0.03, 5.0), some()],
                ["until", g.one_of(0.005, 0.03), some()],
                ["shielded", g.one_of(0.005, 0.03), some()],
                ["thread", ["step", g.one_of("keyed", "step")]],
            )
        )

    body: Body = []
    for _ in range(g.one_of(2, 3)):
        together: Statement = [g.one_of("gather", "group", "map"), [[one()], [one()], some()]]
        body.append(g.one_of(one(), together))
    return g.program("more_of_asyncio", [*body, ["keyed"]])


def child_given_up(g: Generator) -> Program:
    """A run gives up a child at the moment when that gives up a child of its own."""
    g.is_async = True
    a = Generator("", f"{g.name}c0", g.has)
    a.dice, a.is_async, a.depth = g.dice, True, g.depth + 1
    short = a.add_child([["now"]])
    long = a.add_child([["loop", 3, [["now"], ["slow", g.one_of(1, 5, 20)]]]])
    gives_up: Body = [["timeout", g.dice.uniform(0.01, 0.06), [["now"], long]]]
    goes_on: Body = [["random"], [g.one_of("tx", "keyed")], ["sleep", 0.03], ["step"]]
    body: Body = [[g.one_of("group", "gather"), [[short, ["tx"]], [*gives_up, *goes_on]]]]
    g.children.append(a.program("child", body))
    rounds: Statement = [
        "loop",
        3,
        [["timeout", g.dice.uniform(0.05, 0.2), [["child", 0]]], ["slow", 5]],
    ]
    return g.program("child_given_up", [rounds, ["keyed"]])


def late_and_undone(g: Generator) -> Program:
    """A limit ends the run, which is undone, while a call is in doubt."""
    acts: Body = [["undoable"], ["slow", g.one_of(10, 40)], [g.one_of("once", "once", "checked")]]
    made = g.program("late_and_undone", [["loop", 6, acts]])
    made["options"] |= {"on_failure": "undo", "deadline": g.one_of(0.2, 0.4)}
    return made


def failing_loop(g: Generator) -> Program:
    """A loop fails in an iteration in which it has called nothing, and earlier ones are undone."""
    more: Statement = ["map", [[["undoable"]], [["step"]]]] if g.chance(0.4) else ["step"]
    body: Body = [["raise_in", g.one_of(2, 3)], ["undoable"], ["slow", g.one_of(1, 5, 20)], more]
    made = g.program("failing_loop", body, "async_loop" if g.is_async else "loop")
    made["options"]["on_failure"] = "undo"
    return made


def waiting_child_of_limited(g: Generator) -> Program:
    """Item 4: children of a suspended parent, which comes to its limit, work without it, in any process."""
    work: Statement = ["loop", 20, [["keyed"], ["slow", g.one_of(20, 60)]]]
    limit = g.one_of("deadline", "budget", "cancel")
    count = 3 if limit == "deadline" else 1  # so many that all workers are busy with them
    children = [g.add_child([_ask_for(g), work]) for _ in range(count)]
    call: Statement = children[0] if count == 1 else [_join(g), [[child] for child in children]]
    made = g.program("waiting_child_of_limited", [call, ["step"]])
    made["people"]["hesitate"] = 0.1
    if limit == "deadline":
        made["options"]["deadline"] = g.one_of(0.8, 1.2, 2.0)
    elif limit == "budget":
        made["options"]["max_steps"] = 4
        made["children"][0]["options"]["max_steps"] = 30  # more than its parent has left
    else:
        made["people"]["cancel_working"] = True
    return made


def swallowed_timeout(g: Generator) -> Program:
    """A call swallows the cancellation by a timeout: the code hears of it at its next await, and when it is resumed."""
    g.is_async = True
    calls: Body = [["swallow", g.one_of(20, 60)], [g.one_of("keyed", "step")], ["step"]]
    late: Body = [["timeout", g.dice.uniform(0.005, 0.03), calls], ["step"]]
    if g.chance(0.3):
        late = [["race", [calls, [["slow", g.one_of(3, 10)]]]], ["step"]]
    return g.program("swallowed_timeout", [*late, _ask_for(g), ["keyed"]])


def slow_clean_up(g: Generator) -> Program:
    """A call that was given up cleans up, until after another line has its outcome: that line wins, and wins again."""
    g.is_async = True
    gives_up: Statement = ["race", [[["cleans", 300, g.one_of(10, 30)]], [["step"]]]]
    bodies: list[Body] = [[gives_up, ["step"]], [["slow", g.one_of(3, 8, 15)]]]
    g.dice.shuffle(bodies)
    return g.program("slow_clean_up", [["race", bodies], _ask_for(g), ["keyed"]])


def resumed_after_failure(g: Generator) -> Program:
    """A person resumes a failed run: its failed call is made again, and the code takes another path."""
    tried: Body = [["step"], ["unlucky", g.one_of(1, 1, 2)], [g.one_of("step", "keyed")]]
    cleaning: Body = [[g.one_of("keyed", "step")], ["step"]][: g.one_of(1, 2)]
    made = g.program("resumed_after_failure", [["clean_up", tried, cleaning], ["keyed"]])
    made["people"]["again"] = 3
    return made


def resumed_after_races(g: Generator) -> Program:
    """A person resumes a failed run: what it gave up long before its failure is not tried again."""
    g.is_async = True
    lost: Statement = g.one_of(["slow", 400], ["signal", "left", None], ["ask", None])
    race: Statement = ["race", [[lost], [["step"]]]]
    for _ in range(g.one_of(0, 1, 2)):
        kept: Statement = g.one_of(["slow", 400], ["signal", "right", None])
        race = ["race", [[kept], [race]]]
    join: Statement = [g.one_of("gather", "group"), [[["step"]], [["step"]]]]
    after: list[Body] = [[join, ["raise"]], [["unlucky", 1], ["keyed"]], [join, ["unlucky", 1]]]
    made = g.program("resumed_after_races", [race, *g.one_of(*after)])
    made["people"] |= {"again": 2, "hesitate": 0.3}
    return made


def task_left(g: Generator) -> Program:
    """The code returns before one of its tasks has ended: the task is part of the run."""
    g.is_async = True
    task: Body = [[g.one_of("step", "keyed")], _ask_for(g), ["slow", 10], ["keyed"]]
    if g.chance(0.3):
        task = task[2:]
    return g.program("task_left", [["leave", task], *([["step"]] if g.chance(0.5) else [])])


def own_notification(g: Generator) -> Program:
    """A line waits for another one by means that Holdfast does not know, and that one waits for a person."""
    g.is_async = True
    lines: list[Body] = [[["step"], _ask_for(g), ["step"]], [["step"], ["keyed"]]]
    made = g.program("own_notification", [["notify", lines], ["keyed"]])
    made["people"]["hesitate"] = g.one_of(0.3, 2.5)
    return made


def frozen_while_awaiting(g: Generator) -> Program:
    """A worker that is frozen loses a run whose code awaits something of its own, and that never comes."""
    g.is_async = True
    lines: list[Body] = [[["step"], ["hang"], ["step"]], [["step"], ["keyed"]]]
    g.dice.shuffle(lines)
    return g.program("frozen_while_awaiting", [[g.one_of("gather", "group"), lines], ["keyed"]])


def timer_and_own(g: Generator) -> Program:
    """A timer ends at the moment when the run is about to be suspended; another line awaits something of its own."""
    g.is_async = True
    lines: list[Body] = [
        [["sleep", g.dice.uniform(0.06, 0.3)], ["step"]],
        [["signal", "left", None]],
        [["notify", [[["signal", "right", None]], [["step"]]]]],
    ]
    g.dice.shuffle(lines)
    made = g.program("timer_and_own", [[g.one_of("gather", "group"), lines], ["step"]])
    made["people"]["hesitate"] = g.one_of(1.0, 2.5)
    return made


def paused_branches(g: Generator) -> Program:
    """A person pauses a run while its branches append: what one noted must not be lost with the intent of another."""
    noting: Body = [["uuid"], ["slow", g.one_of(1, 2)], ["random"], ["step"], ["uuid"], ["step"]]
    acting: Body = [["keyed"], ["keyed"], ["keyed"]]
    body: Body = [["loop", 3, [[_join(g), [noting, acting, noting, acting]]]]]
    made = g.program("paused_branches", body)
    made["people"]["halt"] = True
    return made


def children_in_rounds(g: Generator) -> Program:
    """Item 2, again and again: the parent is suspended at the moment when its child ends."""
    child = g.add_child([_ask_for(g), *([["step"]] if g.chance(0.5) else [])])
    rounds: Statement = ["loop", 2, [[_join(g), [[_ask_for(g)], [child]]]]]
    made = g.program("children_in_rounds", [rounds, ["keyed"]])
    made["people"]["burst"] = True
    return made


def decision_at_suspension(g: Generator) -> Program:
    """What a run is waiting for comes right before its suspension is committed."""
    waits: Body = [[_ask_for(g)], [_ask_for(g)]]
    if g.is_async and g.chance(0.5):
        waits.append([g.add_child([_ask_for(g), ["step"]])])
    body: Body = [_ask_for(g), ["step"], [_join(g), [[x[0], ["step"]] for x in waits]], ["keyed"]]
    made = g.program("decision_at_suspension", body)
    made["people"]["meet"] = True
    return made


SHAPES: dict[Make, frozenset[str]] = {
    decision_while_working: frozenset({"branch_waits", "map", "gather", "group", "keyed"}),
    model_with_two_tools: frozenset({"branch_waits", "llm", "approvals", "keyed", "map"}),
    question_and_child: frozenset(
        {"branch_waits", "child_waits", "branch_children", "children", "map", "gather", "group"}
    ),
    waiting_child: frozenset({"child_waits", "children"}),
    group_with_child: frozenset(
        {"branch_waits", "child_waits", "branch_children", "children", "group"}
    ),
    limited_parent: frozenset({"child_limits", "children", "limits", "cancels", "keyed"}),
    gated_parent: frozenset(
        {"child_approvals", "child_waits", "children", "approvals", "llm", "keyed", "once"}
    ),
    branches_and_patches: frozenset(
        {"conflicts", "map", "gather", "group", "patches", "keyed", "random"}
    ),
    race_after_join: frozenset({"races", "gather", "group", "questions", "signals", "approvals"}),
    timer_and_signal: frozenset({"branch_waits", "timers", "signals", "map", "gather", "group"}),
    timeout_in_commit: frozenset({"timeouts", "group", "failures"}),
    timeout_at_join: frozenset(
        {"timeouts", "map", "gather", "group", "failures", "signals", "questions", "approvals"}
    ),
    timeout_before_call: frozenset({"timeouts", "gather", "group", "stalls"}),
    more_of_asyncio: frozenset(
        {"branch_waits", "gather", "group", "map", "keyed", "questions", "signals", "approvals"}
    ),
    child_given_up: frozenset(
        {"timeouts", "children", "branch_children", "group", "gather", "tx", "keyed", "timers"}
    ),
    late_and_undone: frozenset({"limits", "undo", "once", "checked", "loops"}),
    failing_loop: frozenset({"loop_agents", "undo", "failures", "map"}),
    waiting_child_of_limited: frozenset(
        {"child_limits", "child_waits", "children", "limits", "cancels", "keyed"}
    ),
    swallowed_timeout: frozenset({"timeouts", "races", "questions", "signals", "approvals"}),
    slow_clean_up: frozenset({"races", "questions", "signals", "approvals"}),
    resumed_after_failure: frozenset({"failures", "retries", "keyed"}),
    resumed_after_races: frozenset(
        {"failures", "retries", "races", "branch_waits", "signals", "gather", "group", "keyed"}
    ),
    task_left: frozenset({"branch_waits", "gather", "questions", "signals", "approvals"}),
    own_notification: frozenset({"branch_waits", "gather", "questions", "signals", "approvals"}),
    frozen_while_awaiting: frozenset({"freezes", "gather", "group", "keyed"}),
    timer_and_own: frozenset({"branch_waits", "timers", "signals", "gather", "group"}),
    paused_branches: frozenset({"conflicts", "pauses", "map", "gather", "group", "random"}),
    children_in_rounds: frozenset(
        {"branch_waits", "child_waits", "branch_children", "children", "map", "gather", "group"}
    ),
    decision_at_suspension: frozenset(
        {"branch_waits", "branch_children", "child_waits", "children", "conflicts"}
    ),
}
"""Each with the features that it needs."""


def generate(seed: str, name: str, features: Features, shape: str = "") -> Program:
    """The program of this seed. With a shape, one of that shape."""
    g = Generator(seed, name, features)
    allowed = [make for make, needs in SHAPES.items() if needs <= features]
    if shape:
        make = next(make for make in SHAPES if make.__name__ == shape)
        made = make(g)
    elif allowed and g.chance(0.5):
        often = [branches_and_patches] * 2 if branches_and_patches in allowed else []
        made = g.dice.choice([*allowed, *often])(g)
    else:
        made = g.random_program()
    _let_people_act(g, made)
    return made


def _let_people_act(g: Generator, program: Program) -> None:
    """What people do to this run besides answering it."""
    calm = "conflicts" not in g.has and (
        has_word(_bodies(program), (*PARALLEL, "timeout")) or "llm" in program["kind"]
    )
    people = program["people"]
    if calm:
        return
    if "patches" in g.has and g.chance(0.3):
        people.setdefault("patches", g.dice.randint(1, 10))
        people.setdefault("storm", "conflicts" in g.has and g.chance(0.5))
    if "pauses" in g.has and g.chance(0.15):
        people["pause"] = round(g.dice.uniform(0.05, 0.5), 3)
    may_cancel = not program["children"] or "child_limits" in g.has
    if "cancels" in g.has and may_cancel and g.chance(0.1):
        people.setdefault("cancel", round(g.dice.uniform(0.05, 0.8), 3))


def _bodies(program: Program) -> list[Any]:
    return [program["body"], *(_bodies(child) for child in program["children"])]


def family(program: Program) -> list[Program]:
    """A program and all below it."""
    return [program, *(below for child in program["children"] for below in family(child))]


# ── printing ─────────────────────────────────────────────────────────────────────────────────


def shown(program: Program) -> str:
    """The program, for people."""
    lines = []
    for one in family(program):
        options = ", ".join(f"{key}={value!r}" for key, value in one["options"].items())
        lines.append(
            f"{one['name']}: {one['kind']} ({one['shape']}) {options} people={one['people']}"
        )
        lines += _shown(one["body"], "    ")
        calls = ", ".join(f"{n} = {child['name']}" for n, child in enumerate(one["children"]))
        lines += [f"    children: {calls}"] if calls else []
    return "\n".join(lines)


def _shown(body: Body, indent: str) -> list[str]:
    lines: list[str] = []
    for statement in body:
        if statement and isinstance(statement[0], list):  # a model's turn
            lines.append(f"{indent}turn: " + ", ".join(str(call[0]) for call in statement))
            continue
        word, *rest = statement
        plain = [str(part) for part in rest if not isinstance(part, list) or not _is_body(part)]
        lines.append(" ".join([f"{indent}{word}", *plain]))
        for part in rest:
            if isinstance(part, list) and _is_body(part):
                bodies = part if isinstance(part[0][0], list) else [part]
                for number, below in enumerate(bodies):
                    lines.append(f"{indent}  {number}:")
                    lines += _shown(below, indent + "    ")
    return lines


def _is_body(part: list[Any]) -> bool:
    return bool(part) and isinstance(part[0], list)

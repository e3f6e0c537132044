"""May this call start now? Retry, deadline, budget and what a parent requires of its children, as pure decisions.

Time comes in as an argument and randomness from a seed in the log, so a replay decides the same.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import asdict, replace

from holdfast.core.events import InheritedPolicy, Usage
from holdfast.errors import InvalidInput

N = TypeVar("N", int, float)

MICROSECONDS: Final = 1_000_000
SECONDS_MAX: Final = 100 * 366 * 86400
"""The longest wait, deadline or timeout: a hundred years. Longer is a mistake in units."""
RISKS: Final = ("read", "write_local", "external_action")
"""What a tool may do to the world, the least first."""
PRESSURE: Final = 0.8
"""Above this share of any limit the run is under budget pressure."""
BUDGET_PRESSURE: Final = "budget_pressure"
"""The risk flag that is raised then."""


def microseconds(seconds: object, what: str) -> int:
    """A span of time in microseconds, or InvalidInput for one that makes no sense."""
    if (
        isinstance(seconds, int | float)
        and not isinstance(seconds, bool)
        and math.isfinite(seconds)
        and 0 <= seconds <= SECONDS_MAX
    ):
        return round(seconds * MICROSECONDS)
    raise InvalidInput(
        f"{what} must be a number of seconds from 0 to {SECONDS_MAX} (100 years), not {seconds!r}"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_exception(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 10_000


class Retry(Struct, frozen=True):
    """How often to try, and how long to wait between attempts: 1 s, 2 s, 4 s … up to `max_delay`.

    `jitter` lengthens each wait by up to that share, so that workers do not all retry at the same time.
    `retry_on` limits which exceptions are tried again; `give_up_on` ends at once.
    """

    attempts: int = 3
    initial: float = 1.0
    factor: float = 2.0
    max_delay: float = 300.0
    jitter: float = 0.1
    retry_on: tuple[type[Exception], ...] = (Exception,)
    give_up_on: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        if not _is_count(self.attempts):
            raise InvalidInput(
                f"Retry.attempts must be a whole number from 1 to 10,000, not {self.attempts!r}"
            )
        microseconds(self.initial, "Retry.initial")
        microseconds(self.max_delay, "Retry.max_delay")
        if not (_is_number(self.factor) and self.factor >= 1):
            raise InvalidInput(f"Retry.factor must be a number of 1 or more, not {self.factor!r}")
        if not (_is_number(self.jitter) and 0 <= self.jitter <= 1):
            raise InvalidInput(f"Retry.jitter must be a number from 0 to 1, not {self.jitter!r}")
        for name in ("retry_on", "give_up_on"):
            kinds: object = getattr(self, name)
            if not isinstance(kinds, tuple) or not all(map(_is_exception, kinds)):
                raise InvalidInput(
                    f"Retry.{name} must be a tuple of exception classes, for example (TimeoutError,), not {kinds!r}"
                )

    def wants(self, error: Exception, attempt: int) -> bool:
        """Whether this error, at this attempt, is to be followed by another attempt."""
        if attempt >= self.attempts or isinstance(error, self.give_up_on):
            return False
        return isinstance(error, self.retry_on)

    def delay_us(self, attempt: int, seed: str) -> int:
        """How long to wait after this attempt. The same seed gives the same wait."""
        exponent = min(attempt - 1, 1000)  # 2.0 ** 1000 is still finite
        try:
            seconds = min(self.initial * self.factor**exponent, self.max_delay)
        except OverflowError:
            seconds = self.max_delay
        chance = int.from_bytes(hashlib.sha256(f"{seed}:{attempt}".encode()).digest()[:8]) / 2**64
        return round(seconds * (1 + self.jitter * chance) * MICROSECONDS)


NO_RETRY: Final = Retry(attempts=1)


STRATEGIES: Final = ("every_step", "every_iteration", "on_state_change")
"""When buffered events are committed, the finest first. Each includes the triggers of those after it."""


class Checkpoint(Struct, frozen=True):
    """When a run's buffered events are committed, and which snapshots are kept.

    Of a run's snapshots the newest `max_count` are kept, and of those none (but the newest) that is older
    than `max_age` seconds. A run that was last written longer ago than `max_age` is not resumed unless
    that is asked for.
    """

    strategy: str = "every_step"
    max_count: int = 3
    max_age: float | None = None

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            known = ", ".join(STRATEGIES)
            raise InvalidInput(f"checkpoint must be one of {known}, not {self.strategy!r}")
        if not _is_count(self.max_count):
            raise InvalidInput(
                f"Checkpoint.max_count must be a whole number from 1 to 10,000, not {self.max_count!r}"
            )
        if self.max_age is not None:
            microseconds(self.max_age, "Checkpoint.max_age")

    @classmethod
    def of(cls, value: object) -> Checkpoint:
        """The checkpoint that a strategy's name, or a Checkpoint, declares."""
        if isinstance(value, Checkpoint):
            return value
        if isinstance(value, str):
            return cls(value)
        raise InvalidInput(f"checkpoint must be a strategy's name or a Checkpoint, not {value!r}")

    @property
    def at_step(self) -> bool:
        """Whether every receipt is committed at once."""
        return self.strategy == "every_step"

    @property
    def at_iteration(self) -> bool:
        """Whether every end of an iteration is committed at once."""
        return self.strategy != "on_state_change"

    @property
    def max_age_us(self) -> int | None:
        return None if self.max_age is None else microseconds(self.max_age, "Checkpoint.max_age")


class Rate(Struct, frozen=True):
    """At most `count` calls start within any `per` seconds, over all workers of a store.

    Tools that name the same limit share it, for example those of one provider; by default each has its own.
    """

    count: int
    per: float = 1.0
    name: str = ""

    def __post_init__(self) -> None:
        if not _is_count(self.count):
            raise InvalidInput(
                f"Rate.count must be a whole number from 1 to 10,000, not {self.count!r}"
            )
        if microseconds(self.per, "Rate.per") == 0:
            raise InvalidInput("Rate.per must be more than 0 seconds")
        if not isinstance(self.name, str):
            raise InvalidInput(f"Rate.name must be text, not {self.name!r}")

    @property
    def slack_us(self) -> int:
        """How late a call may start after its turn; the windows are made longer by it."""
        return min(MICROSECONDS, microseconds(self.per, "Rate.per") // 10)


class Budget(Struct, frozen=True):
    """Limits of a run. None means no limit. Tokens and cost count as the provider reports them."""

    max_steps: int | None = None
    max_wall_time: float | None = None
    max_llm_tokens: int | None = None
    max_cost_usd: float | None = None
    max_artifact_bytes_in_context: int | None = None

    def __post_init__(self) -> None:
        for name, limit in asdict(self).items():
            if limit is None:
                continue
            if not _is_number(limit) or limit < 0:
                raise InvalidInput(f"Budget.{name} must be a number of 0 or more, not {limit!r}")

    def limits(self) -> dict[str, float]:
        """The limits that are set, by name."""
        found = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: limit for name, limit in found.items() if limit is not None}


class Limits(Struct, frozen=True):
    """Limits given for one run, in the place of what its agent declares: seconds from now, and those limits of
    the budget that are set."""

    deadline: float | None = None
    budget: Budget | None = None

    def __post_init__(self) -> None:
        if self.deadline is not None:
            microseconds(self.deadline, "deadline")
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise InvalidInput(
                f"budget must be a Budget, such as Budget(max_steps=100), not {self.budget!r}"
            )

    def __bool__(self) -> bool:
        return self.deadline is not None or bool(self.changes)

    def deadline_at(self, now: int) -> int | None:
        """The deadline, if one is given, for a run that is created or resumed now."""
        return None if self.deadline is None else now + microseconds(self.deadline, "deadline")

    @property
    def changes(self) -> dict[str, float]:
        """The limits of the budget that are set."""
        return {} if self.budget is None else self.budget.limits()


NO_LIMITS: Final = Limits()


class BudgetUse(Struct, frozen=True):
    """What a run has used and what is left, by the names of `Budget`."""

    used: dict[str, float]
    limits: dict[str, float]

    @property
    def left(self) -> dict[str, float]:
        return {
            name: max(0.0, limit - self.used.get(name, 0)) for name, limit in self.limits.items()
        }

    @property
    def pressure(self) -> bool:
        """Whether any limit is four fifths used: a flag for agents that can economise."""
        return any(
            self.used.get(name, 0) >= PRESSURE * limit for name, limit in self.limits.items()
        )

    def exceeded(self) -> str:
        """The limit that forbids another call, in words; empty if none does."""
        for name, limit in self.limits.items():
            used = self.used.get(name, 0)
            over = used >= limit if name == "max_steps" else used > limit
            if name != "max_artifact_bytes_in_context" and over:
                return f"{name} is {limit:g}, and {used:g} are used"
        return ""


def strictest(*budgets: Mapping[str, float]) -> dict[str, float]:
    """Limits from several sources as one budget: of each kind the lowest."""
    found: dict[str, float] = {}
    for limits in budgets:
        for name, limit in limits.items():
            found[name] = min(limit, found.get(name, limit))
    return found


def budget_use(limits: dict[str, float], *, steps: int, elapsed_us: int, usage: Usage) -> BudgetUse:
    """What a run has used of its limits."""
    used = {
        "max_steps": float(steps),
        "max_wall_time": elapsed_us / MICROSECONDS,
        "max_llm_tokens": float(usage.input_tokens + usage.output_tokens),
        "max_cost_usd": usage.cost_usd,
    }
    return BudgetUse(used, dict(limits))


EXEMPTIONS: Final = ("approve", "redact")
"""What an agent need not pass on to its children (`@agent(exempt=…)`). Not its deadline, budget and cancellation:
no child may outlive its parent or spend what the parent does not have."""


class Policy(Struct, frozen=True, gc=False):
    """What holds for the calls of a run. A parent's policy is passed on to its children, who can only narrow it.

    `exempt` names what a run's own declaration does not pass on. What it inherited it always passes on: a child
    cannot release its own children from what its parent requires.
    """

    approve: frozenset[str] = frozenset()
    approval_ttl: float | None = None
    deadline_at: int | None = None
    budget: dict[str, float] = {}
    redact: frozenset[str] = frozenset()
    exempt: frozenset[str] = frozenset()

    def narrow(self, child: Policy, used: Mapping[str, float] | None = None) -> Policy:
        """The policy of a child that declares `child`, when `used` of this budget is used up (by the names
        of `Budget`). In no field wider than either of the two."""
        if self is NO_POLICY:
            return child
        left = BudgetUse(dict(used or {}), dict(self.budget)).left
        budget = {
            name: _least(left.get(name), child.budget.get(name)) or 0.0
            for name in (*left, *(name for name in child.budget if name not in left))
        }
        return Policy(
            approve=self.approve | child.approve,
            approval_ttl=_least(self.approval_ttl, child.approval_ttl),
            deadline_at=_least(self.deadline_at, child.deadline_at),
            budget=budget,
            redact=self.redact | child.redact,
            exempt=child.exempt,
        )

    def passed_on(self, inherited: Policy) -> Policy:
        """What children inherit of this policy, which is the effective one of a run that inherited `inherited`."""
        passed = self
        if "approve" in self.exempt:
            ttl = inherited.approval_ttl
            passed = replace(passed, approve=inherited.approve, approval_ttl=ttl)
        if "redact" in self.exempt:
            passed = replace(passed, redact=inherited.redact)
        return replace(passed, exempt=frozenset())

    def inherited(self) -> InheritedPolicy | None:
        """As it is recorded in a child's first event; None if nothing is required."""
        if not (self.approve or self.redact):
            return None
        return InheritedPolicy(
            tuple(sorted(self.approve)), self.approval_ttl, tuple(sorted(self.redact))
        )

    @classmethod
    def recorded(cls, inherited: InheritedPolicy | None) -> Policy:
        """What a run's parents required when it was created."""
        if inherited is None:
            return NO_POLICY
        return cls(
            approve=frozenset(inherited.approve),
            approval_ttl=inherited.approval_ttl,
            redact=frozenset(inherited.redact),
        )


NO_POLICY: Final = Policy()
"""Nothing is required and nothing limited: so it is for a run without a parent."""


def _least(a: N | None, b: N | None) -> N | None:
    return min((x for x in (a, b) if x is not None), default=None)

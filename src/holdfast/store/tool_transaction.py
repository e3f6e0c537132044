"""The transaction that a tool with `tx` gets, as far as all stores have it in common.

Its statements go to the store's database, then its receipt, then COMMIT. What the tool does wrong is the tool's
failure, InvalidInput on every store, and never the store's, for which a worker would abandon the run.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

from holdfast.errors import InvalidInput, StoreError
from holdfast.store.base import Append, Transaction
from holdfast.store.checks import check_append


class ToolTransaction(abc.ABC):
    """See `base.OpenAppend`."""

    def __init__(self) -> None:
        self.tx: Transaction = self
        self.done = False

    def execute(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement with parameters; its rows."""
        if self.done:
            raise StoreError("this transaction has ended: its receipt was written")
        return self._execute(sql, params)

    def commit(self, work: Append) -> None:
        check_append(work)
        self._finish(work)
        self.done = True

    @abc.abstractmethod
    def _execute(self, sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]]: ...

    @abc.abstractmethod
    def _finish(self, work: Append) -> None:
        """Append and commit everything, or raise and leave it to be rolled back."""


def not_the_tools() -> InvalidInput:
    return InvalidInput(
        "a tool with `tx` must not begin, commit or roll back: Holdfast does, with the receipt"
    )


def cannot_commit() -> InvalidInput:
    return InvalidInput(
        "a statement of this tool failed and ended its transaction, so nothing of it was written"
    )


def without_receipt() -> StoreError:
    return StoreError("a transaction for a tool ended without its receipt")

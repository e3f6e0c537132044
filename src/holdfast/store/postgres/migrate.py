"""Bringing a PostgreSQL schema up to date; the first process does it.

Steps are numbered files; which ones a database has is in its table `schema_steps`. When it is up
to date nothing is written and nothing locked. Otherwise all missing steps are one transaction, under
a lock that ends with it: of several processes that start at once, one migrates and the others find
it done. A database that a newer Holdfast has migrated is refused, and left alone.
"""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg import errors as pg

from holdfast.errors import ReadOnlyStore, SchemaMismatch
from holdfast.store.postgres.connections import Connection
from holdfast.store.sql import Migration

LOCK_SPACE: Final = 0x486F6C64  # "Hold": keeps our advisory lock apart from other programs'


class Schema:
    """One schema's name, and the statements that contain it."""

    def __init__(self, name: str, queries: dict[str, str], steps: list[Migration]) -> None:
        self.name = name
        self.steps = steps
        self._q = queries

    def prepare(self, connection: Connection, user: str) -> None:
        """Migrate if that is needed; SchemaMismatch if it cannot be."""
        try:
            if self.number(connection) == len(self.steps):
                return
            if connection.rows(self._q["in_recovery"])[0][0]:
                raise ReadOnlyStore(
                    f"this is a standby, and its schema {self.name!r} is not up to date; open the primary first"
                )
            self._migrate(connection)
        except pg.InsufficientPrivilege as error:
            raise SchemaMismatch(
                f"the role {user!r} cannot prepare the schema {self.name!r} ({error.diag.message_primary}). "
                f'Let its owner open the store once, then: GRANT USAGE ON SCHEMA "{self.name}" and SELECT, '
                "INSERT, UPDATE, DELETE on its tables to this role"
            ) from None
        except psycopg.OperationalError:
            raise  # the server is not there, or went away: the link's matter
        except psycopg.Error as error:
            raise SchemaMismatch(
                f"the schema {self.name!r} could not be prepared and was left as it was: {error}"
            ) from error

    def number(self, connection: Connection) -> int:
        """How many steps the database has; SchemaMismatch if it is not one of ours, or newer."""
        there, ours = connection.rows(self._q["schema_there"], (self.name, self.name))[0]
        if not there:
            return 0
        if not ours:
            if connection.rows(self._q["schema_tables"], (self.name,)):
                raise SchemaMismatch(
                    f"the schema {self.name!r} contains tables that are not Holdfast's; "
                    "open the store with schema=… to use another name"
                )
            return 0
        found = connection.rows(self._q["schema_steps"])
        if len(found) > len(self.steps):
            raise SchemaMismatch(
                f"the schema {self.name!r} has version {len(found)}, this Holdfast supports {len(self.steps)}; "
                "update Holdfast. Nothing was changed"
            )
        for (number, checksum), step in zip(found, self.steps, strict=False):
            if (number, checksum) != (step.number, step.checksum):
                raise SchemaMismatch(
                    f"step {number} of the schema {self.name!r} is not the one that this Holdfast calls "
                    f"{step.number:04}_{step.name}; it was made by a different build"
                )
        return len(found)

    def may_write(self, connection: Connection) -> bool:
        """Whether this role may do all that a worker does."""
        return bool(connection.rows(self._q["may_write"], (self.name,))[0][0])

    def _migrate(self, connection: Connection) -> None:
        connection.begin(idle_seconds_max=60)
        try:
            connection.execute("SET LOCAL lock_timeout = '60s'")  # another process may be migrating
            connection.execute(self._q["schema_lock"], (LOCK_SPACE, self.name))
            if not connection.rows(self._q["schema_there"], (self.name, self.name))[0][0]:
                connection.execute(self._q["schema_create"])
            connection.execute(self._q["schema_begin"])
            for step in self.steps[self.number(connection) :]:
                connection.execute(step.sql)
                connection.execute(self._q["schema_step"], (step.number, step.name, step.checksum))
            connection.execute("COMMIT")
        except BaseException:  # also an interrupt: no half of a migration stays open
            if not connection.closed:
                connection.rollback()
            raise

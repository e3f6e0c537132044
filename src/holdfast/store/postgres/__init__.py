"""The store for many machines: PostgreSQL, with or without a transaction pooler before it."""

from holdfast.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]

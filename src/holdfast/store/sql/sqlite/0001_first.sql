-- The first schema: runs, their logs, keys, blobs and snapshots.
--
-- One run is one row in `runs` (who owns it, when it is due) and many in `events` (what happened).
-- Times are microseconds since 1970 (UTC). `due_at` is the one condition for being claimed:
-- a new or woken run is due now, a waiting one when its timer ends, a running one when its lease
-- ends, one that is waiting for a person or has ended never (NULL).

CREATE TABLE runs (
  key          INTEGER PRIMARY KEY AUTOINCREMENT,
  id           TEXT    NOT NULL UNIQUE CHECK (length(id) BETWEEN 1 AND 200),
  agent        TEXT    NOT NULL CHECK (length(agent) > 0),
  status       TEXT    NOT NULL CHECK (status IN ('pending', 'running', 'waiting', 'paused',
                                                  'completed', 'failed', 'cancelled', 'quarantined')),
  created_at   INTEGER NOT NULL,
  updated_at   INTEGER NOT NULL,
  epoch        INTEGER NOT NULL DEFAULT 0,  -- only ever grows; checked inside every append
  owner        TEXT    NOT NULL DEFAULT '',
  due_at       INTEGER,
  waiting_for  TEXT    NOT NULL DEFAULT '',
  claims       INTEGER NOT NULL DEFAULT 0,  -- times claimed since the log last grew: a poison run's count
  claimed_seq  INTEGER NOT NULL DEFAULT -1,
  input_digest TEXT    NOT NULL,
  code_version TEXT    NOT NULL DEFAULT '',
  parent       TEXT    NOT NULL DEFAULT '',
  priority     INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX runs_due ON runs (priority DESC, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX runs_next ON runs (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX runs_by_status ON runs (status, key);
CREATE INDEX runs_by_agent ON runs (agent, key);
CREATE INDEX runs_by_parent ON runs (parent, key) WHERE parent <> '';

-- A rowid table with an index, not WITHOUT ROWID: rows of interleaved runs are written at the end of
-- the table, where a clustered key would split pages (measured: four times slower and larger).
CREATE TABLE events (
  run   INTEGER NOT NULL,
  seq   INTEGER NOT NULL,
  time  INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  hash  BLOB    NOT NULL,  -- before the data: the end of a log is read at every append
  kind  TEXT    NOT NULL,
  data  BLOB    NOT NULL
) STRICT;

CREATE UNIQUE INDEX events_by_run ON events (run, seq);

CREATE TABLE blobs (
  run  INTEGER NOT NULL,
  hash TEXT    NOT NULL,
  data BLOB    NOT NULL,
  PRIMARY KEY (run, hash)
) STRICT;

CREATE TABLE snapshots (
  run          INTEGER NOT NULL,
  seq          INTEGER NOT NULL,
  hash         BLOB    NOT NULL,
  code_version TEXT    NOT NULL,
  created_at   INTEGER NOT NULL,
  data         BLOB    NOT NULL,
  PRIMARY KEY (run, seq)
) STRICT;

-- Callers' own idempotency keys: unique over all runs.
CREATE TABLE keys (
  key TEXT    PRIMARY KEY CHECK (length(key) > 0),
  run INTEGER NOT NULL,
  seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX keys_by_run ON keys (run);

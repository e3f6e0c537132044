-- For a fleet: the queue in the order in which it is served, schedules, and limits across all workers.
--
-- The queue is kept by agent and version, because a worker only looks at what it may run. Each point
-- of priority counts as a minute (60000000 µs) of waiting: urgent runs come first, and no run
-- waits forever.

DROP INDEX runs_due;
DROP INDEX runs_next;
CREATE INDEX runs_due ON runs (agent, code_version, due_at - priority * 60000000, due_at)
  WHERE due_at IS NOT NULL;
CREATE INDEX runs_next ON runs (agent, code_version, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX runs_running ON runs (agent) WHERE status = 'running';

CREATE TABLE schedules (
  id         TEXT    PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 150),
  agent      TEXT    NOT NULL CHECK (length(agent) > 0),
  cron       TEXT    NOT NULL,
  zone       TEXT    NOT NULL,
  input      BLOB    NOT NULL,
  priority   INTEGER NOT NULL,
  catch_up   TEXT    NOT NULL CHECK (catch_up IN ('latest', 'all', 'none')),
  created_at INTEGER NOT NULL,
  next_at    INTEGER NOT NULL,
  last_at    INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX schedules_next ON schedules (agent, next_at);

-- When calls under a rate limit began or may begin; `holder` until it has begun.
CREATE TABLE turns (
  name   TEXT    NOT NULL,
  at     INTEGER NOT NULL,
  holder TEXT    NOT NULL
) STRICT;

CREATE INDEX turns_by_time ON turns (name, at);
CREATE UNIQUE INDEX turns_by_holder ON turns (name, holder) WHERE holder <> '';

-- Calls under way of those that are limited in number; a seat is held while its run's lease is.
CREATE TABLE seats (
  name   TEXT    NOT NULL,
  holder TEXT    NOT NULL,
  run    INTEGER NOT NULL,
  epoch  INTEGER NOT NULL,
  PRIMARY KEY (name, holder)
) STRICT, WITHOUT ROWID;

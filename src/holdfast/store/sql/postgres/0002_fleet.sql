-- For a fleet: the queue in the order in which it is served, schedules, and limits across all workers.
--
-- The queue is kept by agent and version, because a worker only looks at what it may run. Each point
-- of priority counts as a minute (60000000 µs) of waiting: urgent runs come first, and no run
-- waits forever.

DROP INDEX holdfast.runs_due;
DROP INDEX holdfast.runs_next;
CREATE INDEX runs_due ON holdfast.runs (agent, code_version, (due_at - priority * 60000000), due_at)
  WHERE due_at IS NOT NULL;
CREATE INDEX runs_next ON holdfast.runs (agent, code_version, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX runs_running ON holdfast.runs (agent) WHERE status = 'running';

CREATE TABLE holdfast.schedules (
  id         text   PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 150),
  agent      text   NOT NULL CHECK (length(agent) > 0),
  cron       text   NOT NULL,
  zone       text   NOT NULL,
  input      bytea  NOT NULL,
  priority   bigint NOT NULL,
  catch_up   text   NOT NULL CHECK (catch_up IN ('latest', 'all', 'none')),
  created_at bigint NOT NULL,
  next_at    bigint NOT NULL,
  last_at    bigint
);

CREATE INDEX schedules_next ON holdfast.schedules (agent, next_at);

-- When calls under a rate limit began or may begin; `holder` until it has begun.
CREATE TABLE holdfast.turns (
  name   text   NOT NULL,
  at     bigint NOT NULL,
  holder text   NOT NULL
);

CREATE INDEX turns_by_time ON holdfast.turns (name, at);
CREATE UNIQUE INDEX turns_by_holder ON holdfast.turns (name, holder) WHERE holder <> '';

-- Calls under way of those that are limited in number; a seat is held while its run's lease is.
CREATE TABLE holdfast.seats (
  name   text   NOT NULL,
  holder text   NOT NULL,
  run    bigint NOT NULL,
  epoch  bigint NOT NULL,
  PRIMARY KEY (name, holder)
);

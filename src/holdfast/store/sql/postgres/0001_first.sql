-- The first schema: runs, their logs, keys, blobs and snapshots.
--
-- One run is one row in `runs` (who owns it, when it is due) and many in `events` (what happened).
-- Times are microseconds since 1970 (UTC) by this server's clock. `due_at` is the one condition for
-- being claimed: a new or woken run is due now, a waiting one when its timer ends, a running one
-- when its lease ends, one that is waiting for a person or has ended never (NULL).
--
-- Payloads are bytea, not jsonb: what is hashed must come back byte for byte.
--
-- The schema is called `holdfast` here and everywhere in this folder; when the store is opened with
-- another name, that one is put in its place. Every name is qualified, so that no search_path
-- can put another table or function in front of ours.

CREATE TABLE holdfast.runs (
  key          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  id           text   NOT NULL UNIQUE CHECK (length(id) BETWEEN 1 AND 200),
  agent        text   NOT NULL CHECK (length(agent) > 0),
  status       text   NOT NULL CHECK (status IN ('pending', 'running', 'waiting', 'paused',
                                                 'completed', 'failed', 'cancelled', 'quarantined')),
  created_at   bigint NOT NULL,
  updated_at   bigint NOT NULL,
  epoch        bigint NOT NULL DEFAULT 0,  -- only ever grows; checked inside every append
  owner        text   NOT NULL DEFAULT '',
  due_at       bigint,
  waiting_for  text   NOT NULL DEFAULT '',
  claims       bigint NOT NULL DEFAULT 0,  -- times claimed since the log last grew: a poison run's count
  claimed_seq  bigint NOT NULL DEFAULT -1,
  claim_token  bigint NOT NULL DEFAULT 0,  -- which claim this is, for a worker whose answer was lost
  input_digest text   NOT NULL,
  code_version text   NOT NULL DEFAULT '',
  parent       text   NOT NULL DEFAULT '',
  priority     bigint NOT NULL DEFAULT 0
);

CREATE INDEX runs_due ON holdfast.runs (priority DESC, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX runs_next ON holdfast.runs (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX runs_by_status ON holdfast.runs (status, key);
CREATE INDEX runs_by_agent ON holdfast.runs (agent, key);
CREATE INDEX runs_by_parent ON holdfast.runs (parent, key) WHERE parent <> '';

CREATE TABLE holdfast.events (
  run   bigint NOT NULL,
  seq   bigint NOT NULL,
  time  bigint NOT NULL,
  epoch bigint NOT NULL,
  kind  text   NOT NULL,
  data  bytea  NOT NULL,
  hash  bytea  NOT NULL,
  PRIMARY KEY (run, seq)
);

CREATE TABLE holdfast.blobs (
  run  bigint NOT NULL,
  hash text   NOT NULL,
  data bytea  NOT NULL,
  PRIMARY KEY (run, hash)
);

CREATE TABLE holdfast.snapshots (
  run          bigint NOT NULL,
  seq          bigint NOT NULL,
  hash         bytea  NOT NULL,
  code_version text   NOT NULL,
  created_at   bigint NOT NULL,
  data         bytea  NOT NULL,
  PRIMARY KEY (run, seq)
);

-- Callers' own idempotency keys: unique over all runs.
CREATE TABLE holdfast.keys (
  key text   PRIMARY KEY CHECK (length(key) > 0),
  run bigint NOT NULL,
  seq bigint NOT NULL
);

CREATE INDEX keys_by_run ON holdfast.keys (run);

-- The store's clock. Only tests replace it.
CREATE FUNCTION holdfast.clock(p_now bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
$$;

-- The hot path: append to many logs, all or nothing, in one round trip; false if one does not fit.
--
-- `p_ids`, `p_fences` (-1: no lease needed), `p_afters` and `p_befores` (the hash at the log's end;
-- empty: any) describe the logs; the other arrays the events, of which each names its log by its
-- place in `p_ids`. `p_notes` are sent to listeners.
--
-- The row of each run is locked, in the order of the keys so that two batches cannot wait for each
-- other, and stays locked until the commit: no claim can raise an epoch between the check and the
-- commit. The logs' ends are read in a statement of their own, after the locks: it sees what was
-- committed by the transaction that held them before. The function keeps its plans in the session, so that it
-- is fast without prepared statements, which a transaction pooler would lose; scans are off, because
-- a plan that was made for an empty table would be kept while the table grows.
CREATE FUNCTION holdfast.append_events(
  p_ids text[], p_fences bigint[], p_afters bigint[], p_befores bytea[],
  p_logs bigint[], p_seqs bigint[], p_times bigint[], p_epochs bigint[], p_kinds text[],
  p_datas bytea[], p_hashes bytea[], p_channel text, p_notes text[]
) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
DECLARE
  v_key   bigint;
  v_keys  bigint[];
  v_epoch bigint;
  v_fits  boolean;
  v_seq   bigint;
  v_hash  bytea;
BEGIN
  IF current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;

  IF cardinality(p_ids) = 1 THEN  -- a run alone: the same in fewer steps
    SELECT r.key, r.epoch INTO v_key, v_epoch
    FROM holdfast.runs r WHERE r.id = p_ids[1] FOR NO KEY UPDATE;
    IF v_key IS NULL OR (p_fences[1] >= 0 AND p_fences[1] <> v_epoch) THEN
      RETURN false;
    END IF;
    SELECT e.seq, e.hash INTO v_seq, v_hash
    FROM holdfast.events e WHERE e.run = v_key ORDER BY e.seq DESC LIMIT 1;
    IF p_afters[1] <> coalesce(v_seq, -1) OR (p_befores[1] <> '' AND p_befores[1] <> v_hash) THEN
      RETURN false;
    END IF;
    v_keys := ARRAY[v_key];
  ELSE
    SELECT array_agg(l.key ORDER BY l.n), bool_and(l.fence < 0 OR l.fence = l.epoch)
    INTO v_keys, v_fits
    FROM (SELECT g.n, g.fence, r.key, r.epoch
          FROM unnest(p_ids, p_fences) WITH ORDINALITY AS g (id, fence, n)
          JOIN holdfast.runs r ON r.id = g.id
          ORDER BY r.key FOR NO KEY UPDATE OF r) l;
    IF v_fits IS NOT TRUE OR cardinality(v_keys) < cardinality(p_ids) THEN
      RETURN false;
    END IF;
    PERFORM 1 FROM unnest(v_keys, p_afters, p_befores) AS g (key, after, before)
    LEFT JOIN LATERAL (SELECT e.seq, e.hash FROM holdfast.events e
                       WHERE e.run = g.key ORDER BY e.seq DESC LIMIT 1) e ON true
    WHERE g.after <> coalesce(e.seq, -1) OR (g.before <> '' AND g.before <> e.hash);
    IF FOUND THEN
      RETURN false;
    END IF;
  END IF;

  IF cardinality(p_seqs) = 1 THEN
    INSERT INTO holdfast.events (run, seq, time, epoch, kind, data, hash)
    VALUES (v_keys[p_logs[1]], p_seqs[1], p_times[1], p_epochs[1], p_kinds[1], p_datas[1], p_hashes[1]);
  ELSE
    INSERT INTO holdfast.events (run, seq, time, epoch, kind, data, hash)
    SELECT v_keys[e.log], e.seq, e.time, e.epoch, e.kind, e.data, e.hash
    FROM unnest(p_logs, p_seqs, p_times, p_epochs, p_kinds, p_datas, p_hashes)
         AS e (log, seq, time, epoch, kind, data, hash);
  END IF;
  IF cardinality(p_notes) > 0 THEN
    PERFORM pg_notify(p_channel, n) FROM unnest(p_notes) AS n;
  END IF;
  RETURN true;
END
$$;

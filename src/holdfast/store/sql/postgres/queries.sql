-- Every statement of the PostgreSQL store, by name. Values are parameters; the schema's name, which
-- cannot be one, is checked against a pattern when the store is opened.
--
-- Rows of `runs` are locked in the order of their keys wherever a statement takes several.

-- name: append
-- The one with numbered parameters: it is sent without psycopg's help, which would cost more.
SELECT holdfast.append_events($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13);

-- name: raise_epochs
-- After a failover that lost commits: an epoch that was used before is not used again.
UPDATE holdfast.runs r SET epoch = k.epoch
FROM unnest(%s::text[], %s::bigint[]) AS k (id, epoch)
WHERE r.id = k.id AND r.epoch < k.epoch
RETURNING r.id;

-- name: set_aside
-- Quarantine a run whose log lacks acknowledged events. Its worker is fenced.
UPDATE holdfast.runs SET status = 'quarantined', due_at = NULL, owner = '', epoch = epoch + 1,
                         waiting_for = %s::text, waiting_kinds = 'quarantine',
                         updated_at = holdfast.clock(NULL)
WHERE id = %s::text AND status NOT IN ('completed', 'failed', 'cancelled')
RETURNING id;

-- name: positions
-- Where logs end. Without locks: epochs and logs only grow, so a refused append stays refused.
SELECT r.id, r.epoch, coalesce(e.seq, -1), coalesce(e.hash, ''), r.key, r.woken
FROM holdfast.runs r
LEFT JOIN LATERAL (SELECT e.seq, e.hash FROM holdfast.events e
                   WHERE e.run = r.key ORDER BY e.seq DESC LIMIT 1) e ON true
WHERE r.id = ANY(%s::text[]);

-- name: stored_hashes
-- The hashes at given positions, to find out what became of an append whose response was lost.
SELECT p.id, p.seq, e.hash
FROM unnest(%s::text[], %s::bigint[]) AS p (id, seq)
JOIN holdfast.runs r ON r.id = p.id
JOIN holdfast.events e ON e.run = r.key AND e.seq = p.seq;

-- name: lock
-- Before anything else is written to these runs, and until earlier writers have finished.
SELECT r.key FROM holdfast.runs r WHERE r.id = ANY(%s::text[]) ORDER BY r.key FOR NO KEY UPDATE;

-- name: insert_blobs
INSERT INTO holdfast.blobs (run, hash, data)
SELECT r.key, b.hash, b.data
FROM unnest(%s::text[], %s::text[], %s::bytea[]) AS b (id, hash, data)
JOIN holdfast.runs r ON r.id = b.id
ON CONFLICT DO NOTHING;

-- name: insert_key
INSERT INTO holdfast.keys (key, run, seq)
SELECT %s::text, r.key, %s::bigint FROM holdfast.runs r WHERE r.id = %s::text
ON CONFLICT DO NOTHING RETURNING 1;

-- name: settle
-- Workers end their leases with a new status; where a count of wake-ups is given, only if it is still that.
UPDATE holdfast.runs r
SET status = s.status, due_at = s.due_at, waiting_for = s.waiting_for,
    waiting_kinds = s.waiting_kinds, owner = '', claims = 0, updated_at = holdfast.clock(%s::bigint)
FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::text[], %s::bigint[], %s::text[])
     AS s (id, status, due_at, waiting_for, woken, waiting_kinds)
WHERE r.id = s.id AND (s.woken IS NULL OR s.woken = r.woken)
RETURNING r.id;

-- name: wake
-- An event arrived for these runs. It always counts; only a run that no worker holds becomes due by it.
UPDATE holdfast.runs r
SET woken = r.woken + 1,
    due_at = CASE WHEN r.status IN ('waiting', 'pending') THEN c.now ELSE r.due_at END,
    updated_at = CASE WHEN r.status IN ('waiting', 'pending') THEN c.now ELSE r.updated_at END,
    status = CASE WHEN r.status = 'waiting' THEN 'pending' ELSE r.status END
FROM (SELECT holdfast.clock(%s::bigint) AS now) c
WHERE r.id = ANY(%s::text[]);

-- name: create_run
-- A new run with its first events and blobs, unless the id is taken; no row then.
WITH made AS (
  INSERT INTO holdfast.runs (id, agent, status, created_at, updated_at, epoch, owner, due_at, claims,
                             claimed_seq, input_digest, code_version, parent, priority)
  SELECT %(id)s::text, %(agent)s::text, CASE WHEN %(worker)s::text = '' THEN 'pending' ELSE 'running' END,
         c.now, c.now, %(epoch)s::bigint, %(worker)s::text, c.now + %(lease)s::bigint, %(epoch)s::bigint,
         %(claimed_seq)s::bigint, %(input_digest)s::text, %(code_version)s::text, %(parent)s::text,
         %(priority)s::bigint
  FROM (SELECT holdfast.clock(%(now)s::bigint) AS now) c
  ON CONFLICT (id) DO NOTHING
  RETURNING id, agent, status, created_at, updated_at, epoch, owner, due_at, waiting_for, claims,
            input_digest, code_version, parent, priority, key, woken, waiting_kinds
), logged AS (
  INSERT INTO holdfast.events (run, seq, time, epoch, kind, data, hash)
  SELECT made.key, e.* FROM made, unnest(%(seqs)s::bigint[], %(times)s::bigint[], %(epochs)s::bigint[],
                                         %(kinds)s::text[], %(datas)s::bytea[], %(hashes)s::bytea[]) AS e
), kept AS (
  INSERT INTO holdfast.blobs (run, hash, data)
  SELECT made.key, b.* FROM made, unnest(%(blob_hashes)s::text[], %(blob_datas)s::bytea[]) AS b
  ON CONFLICT DO NOTHING
), held AS (
  INSERT INTO holdfast.keys (key, run, seq)
  SELECT k.key, made.key, k.seq FROM made, unnest(%(keys)s::text[], %(key_seqs)s::bigint[]) AS k (key, seq)
  ON CONFLICT DO NOTHING
)
SELECT made.*, CASE WHEN made.status = 'pending' THEN pg_catalog.pg_notify(%(channel)s::text, made.id) IS NULL END FROM made;

-- name: run
-- One run by its id.
SELECT id, agent, status, created_at, updated_at, epoch, owner, due_at, waiting_for, claims,
       input_digest, code_version, parent, priority, key, woken, waiting_kinds
FROM holdfast.runs WHERE id = %s::text;

-- name: claim
-- Claim one run that no worker holds, due or not. The condition and the change are one statement. A log
-- that grew only by signs of life since the last claim has made no progress. `max_running` says how many runs of its agent
-- may be in progress (-1: any number); the caller has locked the agent's name then.
UPDATE holdfast.runs r
SET epoch = r.epoch + 1, owner = %(worker)s::text, status = 'running', due_at = c.now + %(lease)s::bigint,
    waiting_for = '', waiting_kinds = '', updated_at = c.now, claim_token = %(token)s::bigint,
    claims = CASE WHEN EXISTS (SELECT 1 FROM holdfast.events e WHERE e.run = r.key AND e.seq > r.claimed_seq
                               AND e.kind <> ALL(%(no_progress)s::text[]))
                  THEN 1 ELSE r.claims + 1 END,
    claimed_seq = (SELECT coalesce(pg_catalog.max(e.seq), -1) FROM holdfast.events e WHERE e.run = r.key)
FROM (SELECT holdfast.clock(%(now)s::bigint) AS now) c
WHERE r.id = %(id)s::text
  AND (r.status IN ('pending', 'waiting') OR (r.status = 'running' AND r.due_at <= c.now))
  AND (%(max_running)s::bigint < 0 OR (SELECT pg_catalog.count(*) FROM holdfast.runs o
       WHERE o.agent = r.agent AND o.status = 'running' AND o.due_at > c.now) < %(max_running)s::bigint)
RETURNING r.id, r.agent, r.status, r.created_at, r.updated_at, r.epoch, r.owner, r.due_at, r.waiting_for,
          r.claims, r.input_digest, r.code_version, r.parent, r.priority, r.key, r.woken, r.waiting_kinds;

-- name: lock_names
-- Transactions that count before they claim run one after the other.
SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended(%s::text || ' ' || n, 0))
FROM (SELECT n FROM pg_catalog.unnest(%s::text[]) AS n ORDER BY n) AS names;

-- name: claim_due
-- Claim due runs, in the order in which they are served. Runs that another worker is
-- claiming are skipped, so that workers do not queue up behind each other. `max_running` says how many
-- runs of an agent may be in progress (-1: any number); the caller has locked the agent's name then. (A
-- priority is at least -10: what is later by ten minutes cannot be due.)
WITH wanted AS MATERIALIZED (
  SELECT w.agent, w.code_version,
         CASE WHEN w.max_running < 0 THEN %(limit)s::bigint ELSE least(%(limit)s::bigint, greatest(0, w.max_running - (
           SELECT pg_catalog.count(*) FROM holdfast.runs r
           WHERE r.agent = w.agent AND r.status = 'running'
             AND r.due_at > (SELECT holdfast.clock(%(now)s::bigint))))) END AS free
  FROM unnest(%(agents)s::text[], %(versions)s::text[], %(max_running)s::bigint[]) AS w (agent, code_version, max_running)
), due AS (
  SELECT d.key, d.rank, w.agent, w.free FROM wanted w CROSS JOIN LATERAL (
    SELECT d.key, d.due_at - d.priority * 60000000 AS rank FROM holdfast.runs d
    WHERE d.agent = w.agent AND d.code_version = w.code_version
      AND d.due_at - d.priority * 60000000 <= (SELECT holdfast.clock(%(now)s::bigint) + 600000000)
      AND d.due_at <= (SELECT holdfast.clock(%(now)s::bigint))
      AND d.status IN ('pending', 'waiting', 'running') AND d.id <> ALL(%(exclude)s::text[])
    ORDER BY d.due_at - d.priority * 60000000 LIMIT w.free
    FOR NO KEY UPDATE OF d SKIP LOCKED
  ) d
), chosen AS (
  SELECT n.key, n.rank
  FROM (SELECT due.*, pg_catalog.row_number() OVER (PARTITION BY due.agent ORDER BY due.rank) AS nth FROM due) n
  WHERE n.nth <= n.free ORDER BY n.rank LIMIT %(limit)s::bigint
), taken AS (
  UPDATE holdfast.runs r
  SET epoch = r.epoch + 1, owner = %(worker)s::text, status = 'running',
      due_at = c.now + %(lease)s::bigint, waiting_for = '', waiting_kinds = '', updated_at = c.now,
      claim_token = %(token)s::bigint,
      claims = CASE WHEN EXISTS (SELECT 1 FROM holdfast.events e WHERE e.run = r.key AND e.seq > r.claimed_seq
                                 AND e.kind <> ALL(%(no_progress)s::text[]))
                    THEN 1 ELSE r.claims + 1 END,
      claimed_seq = (SELECT coalesce(pg_catalog.max(e.seq), -1) FROM holdfast.events e WHERE e.run = r.key)
  FROM chosen, (SELECT holdfast.clock(%(now)s::bigint) AS now) c
  WHERE r.key = chosen.key
  RETURNING r.id, r.agent, r.status, r.created_at, r.updated_at, r.epoch, r.owner, r.due_at,
            r.waiting_for, r.claims, r.input_digest, r.code_version, r.parent, r.priority, r.key, r.woken, r.waiting_kinds,
            chosen.rank AS rank
)
SELECT id, agent, status, created_at, updated_at, epoch, owner, due_at, waiting_for, claims,
       input_digest, code_version, parent, priority, key, woken, waiting_kinds
FROM taken ORDER BY rank, key;

-- name: claimed_by
-- The runs of a claim whose response was lost.
SELECT id, agent, status, created_at, updated_at, epoch, owner, due_at, waiting_for, claims,
       input_digest, code_version, parent, priority, key, woken, waiting_kinds
FROM holdfast.runs
WHERE claim_token = %(token)s::bigint AND owner = %(worker)s::text AND status = 'running'
  AND (%(id)s::text IS NULL OR id = %(id)s::text)
ORDER BY priority DESC, key;

-- name: renew
-- Only before it ends: a lease that has expired is lost, even if no worker has claimed the run yet. A row that
-- is locked is skipped: one that is delayed must not delay the others.
WITH held AS (
  SELECT r.key FROM holdfast.runs r
  JOIN unnest(%(ids)s::text[], %(epochs)s::bigint[]) AS h (id, epoch) ON h.id = r.id AND h.epoch = r.epoch
  WHERE r.status = 'running'
  ORDER BY r.key FOR NO KEY UPDATE OF r SKIP LOCKED
)
UPDATE holdfast.runs r SET due_at = c.now + %(lease)s::bigint
FROM held, (SELECT holdfast.clock(%(now)s::bigint) AS now) c
WHERE r.key = held.key AND r.due_at > c.now
RETURNING r.id, c.now;

-- name: renew_one
-- For leases that were skipped, or are lost.
UPDATE holdfast.runs r SET due_at = holdfast.clock(%(now)s::bigint) + %(lease)s::bigint
WHERE r.id = %(id)s::text AND r.epoch = %(epoch)s::bigint AND r.status = 'running'
  AND r.due_at > holdfast.clock(%(now)s::bigint)
RETURNING r.id;

-- name: release
WITH freed AS (
  UPDATE holdfast.runs r SET status = 'pending', due_at = c.now, owner = '', updated_at = c.now,
                             claims = greatest(0, r.claims - %(forgiven)s::bigint)
  FROM (SELECT holdfast.clock(%(now)s::bigint) AS now) c
  WHERE r.id = %(id)s::text AND r.epoch = %(epoch)s::bigint AND r.status = 'running'
  RETURNING r.id
)
SELECT pg_catalog.pg_notify(%(channel)s::text, freed.id) IS NOT NULL FROM freed;

-- name: released
SELECT 1 FROM holdfast.runs
WHERE id = %(id)s::text AND epoch = %(epoch)s::bigint AND status = 'pending';

-- name: read
SELECT e.seq, e.time, e.epoch, e.kind, e.data, e.hash
FROM holdfast.events e
WHERE e.run = (SELECT r.key FROM holdfast.runs r WHERE r.id = %s::text) AND e.seq > %s::bigint
ORDER BY e.seq LIMIT %s::bigint;

-- name: heads
-- Where the logs of these runs end.
SELECT r.id, e.seq FROM holdfast.runs r
CROSS JOIN LATERAL (SELECT pg_catalog.max(e.seq) AS seq FROM holdfast.events e WHERE e.run = r.key) e
WHERE r.id = ANY(%s::text[]);

-- name: head
SELECT coalesce(pg_catalog.max(e.seq), -1) FROM holdfast.events e
WHERE e.run = (SELECT r.key FROM holdfast.runs r WHERE r.id = %s::text);

-- name: last_restart
-- The kind is written out, as in its index: a parameter could be any.
SELECT coalesce(pg_catalog.max(e.seq), -1) FROM holdfast.events e
WHERE e.run = (SELECT r.key FROM holdfast.runs r WHERE r.id = %s::text) AND e.kind = 'run_restarted';

-- name: list
SELECT id, agent, status, created_at, updated_at, epoch, owner, due_at, waiting_for, claims,
       input_digest, code_version, parent, priority, key, woken, waiting_kinds
FROM holdfast.runs
WHERE (%(cursor)s::bigint IS NULL OR key < %(cursor)s::bigint)
  AND (%(created_after)s::bigint IS NULL OR created_at >= %(created_after)s::bigint)
  AND (%(created_before)s::bigint IS NULL OR created_at < %(created_before)s::bigint)
ORDER BY key DESC LIMIT %(limit)s::bigint;

-- name: list_by_status
SELECT id, agent, status, created_at, updated_at, epoch, owner, due_at, waiting_for, claims,
       input_digest, code_version, parent, priority, key, woken, waiting_kinds
FROM holdfast.runs
WHERE status = %(status)s::text
  AND (%(agent)s::text = '' OR agent = %(agent)s::text)
  AND (%(parent)s::text = '' OR parent = %(parent)s::text)
  AND (%(cursor)s::bigint IS NULL OR key < %(cursor)s::bigint)
  AND (%(created_after)s::bigint IS NULL OR created_at >= %(created_after)s::bigint)
  AND (%(created_before)s::bigint IS NULL OR created_at < %(created_before)s::bigint)
ORDER BY key DESC LIMIT %(limit)s::bigint;

-- name: list_by_agent
SELECT id, agent, status, created_at, updated_at, epoch, owner, due_at, waiting_for, claims,
       input_digest, code_version, parent, priority, key, woken, waiting_kinds
FROM holdfast.runs
WHERE agent = %(agent)s::text
  AND (%(parent)s::text = '' OR parent = %(parent)s::text)
  AND (%(cursor)s::bigint IS NULL OR key < %(cursor)s::bigint)
  AND (%(created_after)s::bigint IS NULL OR created_at >= %(created_after)s::bigint)
  AND (%(created_before)s::bigint IS NULL OR created_at < %(created_before)s::bigint)
ORDER BY key DESC LIMIT %(limit)s::bigint;

-- name: list_by_parent
SELECT id, agent, status, created_at, updated_at, epoch, owner, due_at, waiting_for, claims,
       input_digest, code_version, parent, priority, key, woken, waiting_kinds
FROM holdfast.runs
WHERE parent = %(parent)s::text AND parent <> ''
  AND (%(cursor)s::bigint IS NULL OR key < %(cursor)s::bigint)
  AND (%(created_after)s::bigint IS NULL OR created_at >= %(created_after)s::bigint)
  AND (%(created_before)s::bigint IS NULL OR created_at < %(created_before)s::bigint)
ORDER BY key DESC LIMIT %(limit)s::bigint;

-- name: next_to_do
-- When the next of these runs is due, or the next schedule of their agents: all that an idle worker polls.
SELECT least(
  (SELECT pg_catalog.min(d.due_at) FROM unnest(%(agents)s::text[], %(versions)s::text[]) AS w (agent, code_version)
   CROSS JOIN LATERAL (
     SELECT d.due_at FROM holdfast.runs d
     WHERE d.agent = w.agent AND d.code_version = w.code_version AND d.due_at IS NOT NULL
     ORDER BY d.due_at LIMIT 1
   ) d),
  (SELECT pg_catalog.min(s.next_at) FROM holdfast.schedules s WHERE s.agent = ANY(%(agents)s::text[])));

-- name: kinds
-- Every agent and version with unfinished runs, and when the next of them is due; one index lookup
-- for each.
WITH RECURSIVE kind AS (
  (SELECT r.agent, r.code_version, r.due_at FROM holdfast.runs r WHERE r.due_at IS NOT NULL
   ORDER BY r.agent, r.code_version, r.due_at LIMIT 1)
  UNION ALL
  SELECT n.agent, n.code_version, n.due_at FROM kind k CROSS JOIN LATERAL (
    SELECT r.agent, r.code_version, r.due_at FROM holdfast.runs r
    WHERE r.due_at IS NOT NULL AND (r.agent, r.code_version) > (k.agent, k.code_version)
    ORDER BY r.agent, r.code_version, r.due_at LIMIT 1
  ) n
)
SELECT agent, code_version, due_at FROM kind;

-- name: find_key
SELECT r.id, k.seq FROM holdfast.keys k JOIN holdfast.runs r ON r.key = k.run WHERE k.key = %s::text;

-- name: blob
SELECT b.data FROM holdfast.blobs b JOIN holdfast.runs r ON r.key = b.run
WHERE r.id = %s::text AND b.hash = %s::text;

-- name: lock_for_snapshot
-- Against a deletion; appends may continue meanwhile.
SELECT key FROM holdfast.runs WHERE id = %s::text FOR KEY SHARE;

-- name: save_snapshot
INSERT INTO holdfast.snapshots (run, seq, hash, code_version, created_at, data)
VALUES (%s::bigint, %s::bigint, %s::bytea, %s::text, %s::bigint, %s::bytea)
ON CONFLICT (run, seq) DO UPDATE
SET hash = excluded.hash, code_version = excluded.code_version, created_at = excluded.created_at,
    data = excluded.data;

-- name: rotate_snapshots
-- Beyond the newest few of its family, or too old; never the newest.
DELETE FROM holdfast.snapshots
WHERE run = %(run)s::bigint AND pg_catalog.starts_with(code_version, 'live:') = %(live)s::boolean
  AND seq < (SELECT pg_catalog.max(seq) FROM holdfast.snapshots
             WHERE run = %(run)s::bigint AND pg_catalog.starts_with(code_version, 'live:') = %(live)s::boolean)
  AND (created_at < %(oldest)s::bigint OR seq NOT IN
    (SELECT seq FROM holdfast.snapshots
     WHERE run = %(run)s::bigint AND pg_catalog.starts_with(code_version, 'live:') = %(live)s::boolean
     ORDER BY seq DESC LIMIT %(keep)s::bigint))
RETURNING seq;

-- name: snapshot
SELECT s.seq, s.hash, s.code_version, s.created_at, s.data
FROM holdfast.snapshots s JOIN holdfast.runs r ON r.key = s.run
WHERE r.id = %s::text AND s.seq <= %s::bigint AND pg_catalog.starts_with(s.code_version, 'live:') = %s::boolean
ORDER BY s.seq DESC LIMIT 1;

-- name: lock_to_delete
-- First, and alone: what is deleted next must include what was committed until now.
SELECT key FROM holdfast.runs WHERE id = %s::text FOR UPDATE;

-- name: delete_run
-- Only a run that has ended; the condition is in the statement that deletes. Rows that
-- refer to it are deleted in the same statement.
WITH gone AS (
  DELETE FROM holdfast.runs
  WHERE id = %s::text AND status IN ('completed', 'failed', 'cancelled') RETURNING key
), e AS (DELETE FROM holdfast.events WHERE run IN (SELECT key FROM gone)),
   b AS (DELETE FROM holdfast.blobs WHERE run IN (SELECT key FROM gone)),
   s AS (DELETE FROM holdfast.snapshots WHERE run IN (SELECT key FROM gone)),
   k AS (DELETE FROM holdfast.keys WHERE run IN (SELECT key FROM gone))
SELECT key FROM gone;

-- name: put_schedule
INSERT INTO holdfast.schedules
  (id, agent, cron, zone, input, priority, catch_up, created_at, next_at, last_at)
VALUES (%s::text, %s::text, %s::text, %s::text, %s::bytea, %s::bigint, %s::text, %s::bigint, %s::bigint,
        %s::bigint)
ON CONFLICT (id) DO UPDATE
SET agent = excluded.agent, cron = excluded.cron, zone = excluded.zone, input = excluded.input,
    priority = excluded.priority, catch_up = excluded.catch_up, next_at = excluded.next_at;

-- name: schedules
SELECT id, agent, cron, zone, input, priority, catch_up, created_at, next_at, last_at
FROM holdfast.schedules ORDER BY id;

-- name: due_schedules
SELECT s.id, s.agent, s.cron, s.zone, s.input, s.priority, s.catch_up, s.created_at, s.next_at, s.last_at
FROM holdfast.schedules s
WHERE s.agent = ANY(%(agents)s::text[]) AND s.next_at <= (SELECT holdfast.clock(%(now)s::bigint))
ORDER BY s.next_at LIMIT %(limit)s::bigint;

-- name: advance_schedule
-- Only if no other process has advanced or changed it since it was read.
UPDATE holdfast.schedules SET next_at = %(next_at)s::bigint, last_at = %(last_at)s::bigint
WHERE id = %(id)s::text AND next_at = %(expected)s::bigint RETURNING 1;

-- name: delete_schedule
DELETE FROM holdfast.schedules WHERE id = %s::text RETURNING 1;

-- name: take_turn
-- Start a reserved turn that is due, or reserve the next one: now, if fewer than `count` started
-- within `span`, else as soon as that is the case. The caller has locked the name. Returns the turn's
-- time and the current time.
WITH c AS MATERIALIZED (SELECT holdfast.clock(%(now)s::bigint) AS now),
own AS MATERIALIZED (
  SELECT t.at FROM holdfast.turns t
  WHERE t.name = %(name)s::text AND t.holder = %(holder)s::text AND t.holder <> ''
), kept AS (
  SELECT own.at, own.at <= c.now AS begins FROM own, c WHERE own.at + %(slack)s::bigint >= c.now
), next AS (
  SELECT greatest(c.now, coalesce((SELECT t.at FROM holdfast.turns t
                                   WHERE t.name = %(name)s::text AND t.holder <> %(holder)s::text
                                   ORDER BY t.at DESC LIMIT 1 OFFSET %(count)s::bigint - 1)
                                  + %(span)s::bigint, 0)) AS at
  FROM c WHERE NOT EXISTS (SELECT 1 FROM kept)
), begun AS (
  UPDATE holdfast.turns t SET holder = ''
  WHERE t.name = %(name)s::text AND t.holder = %(holder)s::text AND t.holder <> ''
    AND EXISTS (SELECT 1 FROM kept WHERE kept.begins)
), missed AS (
  UPDATE holdfast.turns t SET at = next.at, holder = CASE WHEN next.at <= c.now THEN '' ELSE t.holder END
  FROM next, c
  WHERE t.name = %(name)s::text AND t.holder = %(holder)s::text AND t.holder <> ''
  RETURNING t.at
), made AS (
  INSERT INTO holdfast.turns (name, at, holder)
  SELECT %(name)s::text, next.at, CASE WHEN next.at <= c.now THEN '' ELSE %(holder)s::text END
  FROM next, c WHERE NOT EXISTS (SELECT 1 FROM own)
)
SELECT coalesce((SELECT at FROM kept), (SELECT at FROM next)), c.now FROM c;

-- name: forget_turns
DELETE FROM holdfast.turns
WHERE name = %(name)s::text AND at < holdfast.clock(%(now)s::bigint) - 2 * %(span)s::bigint;

-- name: free_seats
-- Seats of runs that no live worker holds.
DELETE FROM holdfast.seats s WHERE s.name = %(name)s::text AND NOT EXISTS (
  SELECT 1 FROM holdfast.runs r
  WHERE r.key = s.run AND r.epoch = s.epoch AND r.status = 'running'
    AND r.due_at > (SELECT holdfast.clock(%(now)s::bigint)));

-- name: take_seat
-- The caller has locked the name. Returns a row if the seat was obtained.
WITH taken AS MATERIALIZED (
  SELECT pg_catalog.count(*) AS n, coalesce(pg_catalog.bool_or(s.holder = %(holder)s::text), false) AS ours
  FROM holdfast.seats s WHERE s.name = %(name)s::text
), made AS (
  INSERT INTO holdfast.seats (name, holder, run, epoch)
  SELECT %(name)s::text, %(holder)s::text, r.key, %(epoch)s::bigint
  FROM holdfast.runs r, taken
  WHERE r.id = %(run_id)s::text AND NOT taken.ours AND taken.n < %(limit)s::bigint
  RETURNING 1
)
SELECT 1 FROM made UNION ALL SELECT 1 FROM taken WHERE ours;

-- name: leave_seat
DELETE FROM holdfast.seats WHERE name = %s::text AND holder = %s::text RETURNING 1;

-- name: notify
SELECT pg_catalog.pg_notify(%s::text, %s::text);

-- name: settings
SELECT pg_catalog.current_setting('server_version_num')::int, pg_catalog.current_setting('server_version'),
       pg_catalog.current_setting('fsync'), pg_catalog.current_setting('full_page_writes'),
       pg_catalog.current_setting('synchronous_commit'), pg_catalog.current_setting('data_checksums'), pg_catalog.pg_is_in_recovery();

-- name: in_recovery
SELECT pg_catalog.pg_is_in_recovery();

-- name: schema_there
-- Whether the schema exists, and whether it is one of ours.
SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s::text),
       EXISTS (SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = %s::text AND c.relname = 'schema_steps');

-- name: schema_tables
SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s::text LIMIT 1;

-- name: schema_steps
SELECT number, checksum FROM holdfast.schema_steps ORDER BY number;

-- name: schema_lock
SELECT pg_catalog.pg_advisory_xact_lock(%s::int, pg_catalog.hashtext(%s::text));

-- name: schema_create
CREATE SCHEMA holdfast;

-- name: schema_begin
CREATE TABLE IF NOT EXISTS holdfast.schema_steps (
  number     int    PRIMARY KEY,
  name       text   NOT NULL,
  checksum   text   NOT NULL,
  applied_at bigint NOT NULL
);

-- name: schema_step
INSERT INTO holdfast.schema_steps (number, name, checksum, applied_at)
VALUES (%s, %s, %s, (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint);

-- name: may_write
-- Whether this role may do everything a worker does.
SELECT coalesce(pg_catalog.bool_and(pg_catalog.has_table_privilege(c.oid, p)), false)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace,
     pg_catalog.unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p
WHERE n.nspname = %s::text AND c.relname IN ('runs', 'events', 'blobs', 'snapshots', 'keys', 'schedules',
                                           'turns', 'seats', 'agents');

-- name: register_agent
INSERT INTO holdfast.agents (name, code_version, data, registered_at)
VALUES (%s::text, %s::text, %s::bytea, %s::bigint)
ON CONFLICT (name, code_version) DO UPDATE
SET data = excluded.data, registered_at = excluded.registered_at;

-- name: agents
SELECT name, code_version, data, registered_at FROM holdfast.agents
ORDER BY name COLLATE "C", registered_at DESC, code_version COLLATE "C";

-- name: agent_names
-- The agents that have runs; one index lookup for each.
WITH RECURSIVE known (agent) AS (
  SELECT pg_catalog.min(agent) FROM holdfast.runs
  UNION ALL
  SELECT (SELECT pg_catalog.min(r.agent) FROM holdfast.runs r WHERE r.agent > known.agent)
  FROM known WHERE known.agent IS NOT NULL
)
SELECT agent FROM known WHERE agent IS NOT NULL ORDER BY agent COLLATE "C";

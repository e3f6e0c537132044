-- Every statement of the SQLite store, by name. Values are parameters.

-- name: create_run
-- A new run, unless the id is taken.
INSERT INTO runs (id, agent, status, created_at, updated_at, epoch, owner, due_at, claims,
                  claimed_seq, input_digest, code_version, parent, priority)
VALUES (:id, :agent, :status, :now, :now, :epoch, :owner, :due_at, :claims,
        :claimed_seq, :input_digest, :code_version, :parent, :priority)
ON CONFLICT (id) DO NOTHING RETURNING key;

-- name: run
-- One run by its id.
SELECT id, agent, status, created_at, updated_at, epoch, owner, due_at, waiting_for, claims,
       input_digest, code_version, parent, priority, key, woken, waiting_kinds
FROM runs WHERE id = ?;

-- name: run_key
SELECT key FROM runs WHERE id = ?;

-- name: fence
-- What an append is checked against, for the runs of a batch (a JSON list of ids).
SELECT r.id, r.key, r.epoch, coalesce(e.seq, -1), coalesce(e.hash, x''), r.woken
FROM json_each(?) AS k JOIN runs r ON r.id = k.value
LEFT JOIN events e ON e.rowid = (SELECT rowid FROM events WHERE run = r.key ORDER BY seq DESC LIMIT 1);

-- name: fence_one
SELECT r.id, r.key, r.epoch, coalesce(e.seq, -1), coalesce(e.hash, x''), r.woken
FROM runs r
LEFT JOIN events e ON e.rowid = (SELECT rowid FROM events WHERE run = r.key ORDER BY seq DESC LIMIT 1)
WHERE r.id = ?;

-- name: heads
-- Where the logs of these runs end (a JSON list of ids).
SELECT r.id, (SELECT max(e.seq) FROM events e WHERE e.run = r.key)
FROM json_each(?) AS k JOIN runs r ON r.id = k.value;

-- name: insert_event
INSERT INTO events (run, seq, time, epoch, kind, data, hash) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: insert_blob
INSERT INTO blobs (run, hash, data) VALUES (?, ?, ?) ON CONFLICT DO NOTHING;

-- name: insert_key
INSERT INTO keys (key, run, seq) VALUES (?, ?, ?) ON CONFLICT DO NOTHING RETURNING 1;

-- name: settle
-- A worker ends its lease with a new status.
UPDATE runs SET status = :status, due_at = :due_at, waiting_for = :waiting_for,
                waiting_kinds = :waiting_kinds, owner = '', claims = 0, updated_at = :now
WHERE key = :key;

-- name: wake
-- An event arrived for a run. It always counts; only a run that no worker holds becomes due by it.
UPDATE runs SET woken = woken + 1,
                due_at = CASE WHEN status IN ('waiting', 'pending') THEN :now ELSE due_at END,
                updated_at = CASE WHEN status IN ('waiting', 'pending') THEN :now ELSE updated_at END,
                status = CASE WHEN status = 'waiting' THEN 'pending' ELSE status END
WHERE key = :key;

-- name: wake_by_id
UPDATE runs SET woken = woken + 1,
                due_at = CASE WHEN status IN ('waiting', 'pending') THEN :now ELSE due_at END,
                updated_at = CASE WHEN status IN ('waiting', 'pending') THEN :now ELSE updated_at END,
                status = CASE WHEN status = 'waiting' THEN 'pending' ELSE status END
WHERE id = :id;

-- name: claim
-- Claim runs (a JSON list of keys) that no worker holds, due or not. The condition and the change are one
-- statement. A log that grew only by signs of life since the last claim has made no progress. (The plus signs
-- keep SQLite from seeking by status.)
UPDATE runs SET epoch = epoch + 1, owner = :worker, status = 'running', due_at = :until,
                waiting_for = '', waiting_kinds = '', updated_at = :now,
                claims = CASE WHEN EXISTS (SELECT 1 FROM events e WHERE e.run = runs.key AND e.seq > claimed_seq
                                           AND e.kind NOT IN (SELECT value FROM json_each(:no_progress)))
                              THEN 1 ELSE claims + 1 END,
                claimed_seq = (SELECT max(e.seq) FROM events e WHERE e.run = runs.key)
WHERE key IN (SELECT value FROM json_each(:keys))
  AND (+status IN ('pending', 'waiting') OR (+status = 'running' AND +due_at <= :now))
RETURNING id, agent, status, created_at, updated_at, epoch, owner, due_at, waiting_for, claims,
          input_digest, code_version, parent, priority, key, woken, waiting_kinds;

-- name: due
-- Due runs of one agent and version, in the order in which they are served. (A
-- priority is at least -10: what is later by ten minutes cannot be due.)
SELECT due_at - priority * 60000000, key FROM runs
WHERE agent = :agent AND code_version = :code_version
  AND due_at - priority * 60000000 <= :now + 600000000 AND due_at <= :now
  AND (:exclude IS NULL OR id NOT IN (SELECT value FROM json_each(:exclude)))
ORDER BY due_at - priority * 60000000 LIMIT :limit;

-- name: running
-- How many runs of an agent are held by live workers.
SELECT count(*) FROM runs WHERE agent = :agent AND status = 'running' AND due_at > :now;

-- name: renew
-- Only before it ends: a lease that has expired is lost, even if no worker has claimed the run yet.
UPDATE runs SET due_at = :until
WHERE id = :id AND epoch = :epoch AND status = 'running' AND due_at > :now RETURNING 1;

-- name: release
UPDATE runs SET status = 'pending', due_at = :now, owner = '', updated_at = :now,
                claims = max(0, claims - :forgiven)
WHERE id = :id AND epoch = :epoch AND status = 'running' RETURNING 1;

-- name: read
SELECT e.seq, e.time, e.epoch, CAST(e.kind AS BLOB), e.data, e.hash
FROM events e WHERE e.run = (SELECT key FROM runs WHERE id = ?) AND e.seq > ? ORDER BY e.seq LIMIT ?;

-- name: head
SELECT coalesce(max(seq), -1) FROM events WHERE run = (SELECT key FROM runs WHERE id = ?);

-- name: last_restart
-- The kind is written out, as in its index: a parameter could be any.
SELECT coalesce(max(seq), -1) FROM events
WHERE run = (SELECT key FROM runs WHERE id = ?) AND kind = 'run_restarted';

-- name: list
SELECT id, agent, status, created_at, updated_at, epoch, owner, due_at, waiting_for, claims,
       input_digest, code_version, parent, priority, key, woken, waiting_kinds
FROM runs
WHERE (:cursor IS NULL OR key < :cursor) AND (:created_after IS NULL OR created_at >= :created_after)
  AND (:created_before IS NULL OR created_at < :created_before)
ORDER BY key DESC LIMIT :limit;

-- name: list_by_status
SELECT id, agent, status, created_at, updated_at, epoch, owner, due_at, waiting_for, claims,
       input_digest, code_version, parent, priority, key, woken, waiting_kinds
FROM runs
WHERE status = :status AND (:agent = '' OR agent = :agent) AND (:parent = '' OR parent = :parent)
  AND (:cursor IS NULL OR key < :cursor) AND (:created_after IS NULL OR created_at >= :created_after)
  AND (:created_before IS NULL OR created_at < :created_before)
ORDER BY key DESC LIMIT :limit;

-- name: list_by_agent
SELECT id, agent, status, created_at, updated_at, epoch, owner, due_at, waiting_for, claims,
       input_digest, code_version, parent, priority, key, woken, waiting_kinds
FROM runs
WHERE agent = :agent AND (:parent = '' OR parent = :parent)
  AND (:cursor IS NULL OR key < :cursor) AND (:created_after IS NULL OR created_at >= :created_after)
  AND (:created_before IS NULL OR created_at < :created_before)
ORDER BY key DESC LIMIT :limit;

-- name: list_by_parent
SELECT id, agent, status, created_at, updated_at, epoch, owner, due_at, waiting_for, claims,
       input_digest, code_version, parent, priority, key, woken, waiting_kinds
FROM runs
WHERE parent = :parent AND parent <> ''
  AND (:cursor IS NULL OR key < :cursor) AND (:created_after IS NULL OR created_at >= :created_after)
  AND (:created_before IS NULL OR created_at < :created_before)
ORDER BY key DESC LIMIT :limit;

-- name: next_due
SELECT due_at FROM runs
WHERE agent = :agent AND code_version = :code_version AND due_at IS NOT NULL ORDER BY due_at LIMIT 1;

-- name: kinds
-- Every agent and version with unfinished runs, and when the next of them is due; one or two index
-- lookups for each. (Not by comparing pairs: SQLite would walk through all runs of an agent.)
WITH RECURSIVE kind (agent, code_version, due_at) AS (
  SELECT agent, code_version, due_at FROM runs WHERE key =
    (SELECT key FROM runs WHERE due_at IS NOT NULL ORDER BY agent, code_version, due_at LIMIT 1)
  UNION ALL
  SELECT r.agent, r.code_version, r.due_at FROM kind k JOIN runs r ON r.key = coalesce(
    (SELECT n.key FROM runs n
     WHERE n.due_at IS NOT NULL AND n.agent = k.agent AND n.code_version > k.code_version
     ORDER BY n.code_version, n.due_at LIMIT 1),
    (SELECT n.key FROM runs n WHERE n.due_at IS NOT NULL AND n.agent > k.agent
     ORDER BY n.agent, n.code_version, n.due_at LIMIT 1))
)
SELECT agent, code_version, due_at FROM kind;

-- name: find_key
SELECT r.id, k.seq FROM keys k JOIN runs r ON r.key = k.run WHERE k.key = ?;

-- name: blob
SELECT b.data FROM blobs b JOIN runs r ON r.key = b.run WHERE r.id = ? AND b.hash = ?;

-- name: save_snapshot
INSERT OR REPLACE INTO snapshots (run, seq, hash, code_version, created_at, data)
VALUES (?, ?, ?, ?, ?, ?);

-- name: rotate_snapshots
-- Beyond the newest few of its family, or too old; never the newest.
DELETE FROM snapshots WHERE run = :run AND (code_version LIKE 'live:%') = :live
  AND seq < (SELECT max(seq) FROM snapshots WHERE run = :run AND (code_version LIKE 'live:%') = :live)
  AND (created_at < :oldest OR seq NOT IN
    (SELECT seq FROM snapshots WHERE run = :run AND (code_version LIKE 'live:%') = :live
     ORDER BY seq DESC LIMIT :keep))
RETURNING seq;

-- name: snapshot
SELECT s.seq, s.hash, s.code_version, s.created_at, s.data
FROM snapshots s WHERE s.run = (SELECT key FROM runs WHERE id = ?) AND s.seq <= ?
  AND (s.code_version LIKE 'live:%') = ? ORDER BY s.seq DESC LIMIT 1;

-- name: delete_run
-- Only a run that has ended; the condition is in the statement that deletes.
DELETE FROM runs WHERE id = ? AND status IN ('completed', 'failed', 'cancelled') RETURNING key;

-- name: delete_events
DELETE FROM events WHERE run = ?;

-- name: delete_blobs
DELETE FROM blobs WHERE run = ?;

-- name: delete_snapshots
DELETE FROM snapshots WHERE run = ?;

-- name: delete_keys
DELETE FROM keys WHERE run = ?;

-- name: put_schedule
INSERT INTO schedules (id, agent, cron, zone, input, priority, catch_up, created_at, next_at, last_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE
SET agent = excluded.agent, cron = excluded.cron, zone = excluded.zone, input = excluded.input,
    priority = excluded.priority, catch_up = excluded.catch_up, next_at = excluded.next_at;

-- name: schedules
SELECT id, agent, cron, zone, input, priority, catch_up, created_at, next_at, last_at
FROM schedules ORDER BY id;

-- name: due_schedules
SELECT s.id, s.agent, s.cron, s.zone, s.input, s.priority, s.catch_up, s.created_at, s.next_at, s.last_at
FROM json_each(:agents) a JOIN schedules s ON s.agent = a.value AND s.next_at <= :now
ORDER BY s.next_at LIMIT :limit;

-- name: next_schedule
SELECT min((SELECT min(s.next_at) FROM schedules s WHERE s.agent = a.value)) FROM json_each(:agents) a;

-- name: advance_schedule
-- Only if no other process has advanced or changed it since it was read.
UPDATE schedules SET next_at = :next_at, last_at = :last_at
WHERE id = :id AND next_at = :expected RETURNING 1;

-- name: delete_schedule
DELETE FROM schedules WHERE id = ? RETURNING 1;

-- name: own_turn
SELECT at FROM turns WHERE name = :name AND holder = :holder AND holder <> '';

-- name: begin_turn
UPDATE turns SET holder = '' WHERE name = :name AND holder = :holder AND holder <> '';

-- name: drop_turn
DELETE FROM turns WHERE name = :name AND holder = :holder AND holder <> '';

-- name: forget_turns
DELETE FROM turns WHERE name = :name AND at < :before;

-- name: last_turn
-- The turn that must be over before another one may begin.
SELECT at FROM turns WHERE name = :name ORDER BY at DESC LIMIT 1 OFFSET :count - 1;

-- name: insert_turn
INSERT INTO turns (name, at, holder) VALUES (:name, :at, :holder);

-- name: free_seats
-- Seats of runs that no live worker holds.
DELETE FROM seats WHERE name = :name AND NOT EXISTS (
  SELECT 1 FROM runs r WHERE r.key = seats.run AND r.epoch = seats.epoch AND r.status = 'running'
                         AND r.due_at > :now);

-- name: seats
SELECT count(*), coalesce(max(holder = :holder), 0) FROM seats WHERE name = :name;

-- name: insert_seat
INSERT INTO seats (name, holder, run, epoch)
SELECT :name, :holder, key, :epoch FROM runs WHERE id = :run_id;

-- name: leave_seat
DELETE FROM seats WHERE name = ? AND holder = ?;

-- name: register_agent
INSERT INTO agents (name, code_version, data, registered_at) VALUES (?, ?, ?, ?)
ON CONFLICT (name, code_version) DO UPDATE
SET data = excluded.data, registered_at = excluded.registered_at;

-- name: agents
SELECT name, code_version, data, registered_at FROM agents ORDER BY name, registered_at DESC, code_version;

-- name: agent_names
-- The agents that have runs; one index lookup for each.
WITH RECURSIVE known (agent) AS (
  SELECT min(agent) FROM runs
  UNION ALL
  SELECT (SELECT min(r.agent) FROM runs r WHERE r.agent > known.agent) FROM known WHERE known.agent IS NOT NULL
)
SELECT agent FROM known WHERE agent IS NOT NULL;

-- Every statement of the SQLite store, by name. Parameters only; nothing is ever pasted in.

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
       input_digest, code_version, parent, priority, key
FROM runs WHERE id = ?;

-- name: run_key
SELECT key FROM runs WHERE id = ?;

-- name: fence
-- What an append is checked against, for the runs of a batch (a JSON list of ids).
SELECT r.id, r.key, r.epoch, coalesce(e.seq, -1), coalesce(e.hash, x'')
FROM json_each(?) AS k JOIN runs r ON r.id = k.value
LEFT JOIN events e ON e.rowid = (SELECT rowid FROM events WHERE run = r.key ORDER BY seq DESC LIMIT 1);

-- name: fence_one
SELECT r.id, r.key, r.epoch, coalesce(e.seq, -1), coalesce(e.hash, x'')
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
UPDATE runs SET status = :status, due_at = :due_at, waiting_for = :waiting_for, owner = '',
                claims = 0, updated_at = :now
WHERE key = :key;

-- name: wake
-- Something came for a run that waits. A running one will see it in its log.
UPDATE runs SET status = 'pending', due_at = :now, updated_at = :now
WHERE key = :key AND status IN ('waiting', 'pending');

-- name: wake_by_id
UPDATE runs SET status = 'pending', due_at = :now, updated_at = :now
WHERE id = :id AND status IN ('waiting', 'pending');

-- name: claim
-- Take one run that nobody holds, due or not. The condition and the change are one statement.
UPDATE runs SET epoch = epoch + 1, owner = :worker, status = 'running', due_at = :until,
                waiting_for = '', updated_at = :now,
                claims = CASE WHEN (SELECT max(e.seq) FROM events e WHERE e.run = runs.key) > claimed_seq
                              THEN 1 ELSE claims + 1 END,
                claimed_seq = (SELECT max(e.seq) FROM events e WHERE e.run = runs.key)
WHERE id = :id AND (status IN ('pending', 'waiting') OR (status = 'running' AND due_at <= :now))
RETURNING id, agent, status, created_at, updated_at, epoch, owner, due_at, waiting_for, claims,
          input_digest, code_version, parent, priority, key;

-- name: due
-- Runs whose time has come, the most urgent first.
SELECT id FROM runs
WHERE due_at <= :now AND (:agents IS NULL OR agent IN (SELECT value FROM json_each(:agents)))
ORDER BY priority DESC, due_at LIMIT :limit;

-- name: renew
-- Only before it ends: a lease that has expired is lost, even if nobody has taken it yet.
UPDATE runs SET due_at = :until
WHERE id = :id AND epoch = :epoch AND status = 'running' AND due_at > :now RETURNING 1;

-- name: release
UPDATE runs SET status = 'pending', due_at = :now, owner = '', updated_at = :now
WHERE id = :id AND epoch = :epoch AND status = 'running' RETURNING 1;

-- name: read
SELECT e.seq, e.time, e.epoch, CAST(e.kind AS BLOB), e.data, e.hash
FROM events e WHERE e.run = (SELECT key FROM runs WHERE id = ?) AND e.seq > ? ORDER BY e.seq LIMIT ?;

-- name: event_hash
SELECT hash FROM events WHERE run = ? AND seq = ?;

-- name: head
SELECT coalesce(max(seq), -1) FROM events WHERE run = (SELECT key FROM runs WHERE id = ?);

-- name: last
-- Without an index of its own: it is asked once for a long log that is taken up again, and looking
-- through 100,000 events takes 60 ms (reading them takes ten times as long).
SELECT coalesce(max(seq), -1) FROM events WHERE run = (SELECT key FROM runs WHERE id = ?) AND kind = ?;

-- name: list
SELECT id, agent, status, created_at, updated_at, epoch, owner, due_at, waiting_for, claims,
       input_digest, code_version, parent, priority, key
FROM runs
WHERE (:cursor IS NULL OR key < :cursor) AND (:created_after IS NULL OR created_at >= :created_after)
  AND (:created_before IS NULL OR created_at < :created_before)
ORDER BY key DESC LIMIT :limit;

-- name: list_by_status
SELECT id, agent, status, created_at, updated_at, epoch, owner, due_at, waiting_for, claims,
       input_digest, code_version, parent, priority, key
FROM runs
WHERE status = :status AND (:agent = '' OR agent = :agent) AND (:parent = '' OR parent = :parent)
  AND (:cursor IS NULL OR key < :cursor) AND (:created_after IS NULL OR created_at >= :created_after)
  AND (:created_before IS NULL OR created_at < :created_before)
ORDER BY key DESC LIMIT :limit;

-- name: list_by_agent
SELECT id, agent, status, created_at, updated_at, epoch, owner, due_at, waiting_for, claims,
       input_digest, code_version, parent, priority, key
FROM runs
WHERE agent = :agent AND (:parent = '' OR parent = :parent)
  AND (:cursor IS NULL OR key < :cursor) AND (:created_after IS NULL OR created_at >= :created_after)
  AND (:created_before IS NULL OR created_at < :created_before)
ORDER BY key DESC LIMIT :limit;

-- name: list_by_parent
SELECT id, agent, status, created_at, updated_at, epoch, owner, due_at, waiting_for, claims,
       input_digest, code_version, parent, priority, key
FROM runs
WHERE parent = :parent AND parent <> ''
  AND (:cursor IS NULL OR key < :cursor) AND (:created_after IS NULL OR created_at >= :created_after)
  AND (:created_before IS NULL OR created_at < :created_before)
ORDER BY key DESC LIMIT :limit;

-- name: next_due
SELECT min(due_at) FROM runs WHERE due_at IS NOT NULL;

-- name: find_key
SELECT r.id, k.seq FROM keys k JOIN runs r ON r.key = k.run WHERE k.key = ?;

-- name: blob
SELECT b.data FROM blobs b JOIN runs r ON r.key = b.run WHERE r.id = ? AND b.hash = ?;

-- name: save_snapshot
INSERT OR REPLACE INTO snapshots (run, seq, hash, code_version, created_at, data)
VALUES (?, ?, ?, ?, ?, ?);

-- name: rotate_snapshots
DELETE FROM snapshots WHERE run = :run AND seq NOT IN
  (SELECT seq FROM snapshots WHERE run = :run ORDER BY seq DESC LIMIT :keep);

-- name: snapshot
SELECT s.seq, s.hash, s.code_version, s.created_at, s.data
FROM snapshots s WHERE s.run = (SELECT key FROM runs WHERE id = ?) AND s.seq <= ? ORDER BY s.seq DESC LIMIT 1;

-- name: delete_run
-- Only a run that has ended; the condition stands in the statement that deletes.
DELETE FROM runs WHERE id = ? AND status IN ('completed', 'failed', 'cancelled') RETURNING key;

-- name: delete_events
DELETE FROM events WHERE run = ?;

-- name: delete_blobs
DELETE FROM blobs WHERE run = ?;

-- name: delete_snapshots
DELETE FROM snapshots WHERE run = ?;

-- name: delete_keys
DELETE FROM keys WHERE run = ?;

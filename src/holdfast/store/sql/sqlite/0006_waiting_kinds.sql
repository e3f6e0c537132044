-- What a run is waiting for, as kinds (module `waiting`), separated by spaces.
--
-- `waiting_for` is the same as a sentence. Until now, the runs that are waiting for people were found by its first words,
-- which this step does for the last time.

ALTER TABLE runs ADD COLUMN waiting_kinds TEXT NOT NULL DEFAULT '';
UPDATE runs SET waiting_kinds = CASE
  WHEN waiting_for LIKE 'approval%' THEN 'approval'
  WHEN waiting_for LIKE 'an answer%' THEN 'answer'
  WHEN waiting_for LIKE 'a decision%' THEN 'decision'
  WHEN waiting_for LIKE 'a person to resume it%' THEN 'resume'
  ELSE 'person' END
WHERE status IN ('waiting', 'paused')
  AND (waiting_for LIKE 'approval%' OR waiting_for LIKE 'an answer%' OR waiting_for LIKE 'a decision%' OR waiting_for LIKE 'a person%');

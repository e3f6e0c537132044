-- Where a run's code last started over: a resumed run does not replay the events before.
--
-- Few runs do, so the index is nearly empty; without it the whole log was searched (0.1 s for
-- 100,000 events).

CREATE INDEX events_restarted ON events (run, seq) WHERE kind = 'run_restarted';

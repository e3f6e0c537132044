-- How often a run was woken: by an event from outside, or by the end of a child run.
--
-- A worker suspends a run only if this is still what it was when the worker last looked at the run's
-- children. Without it, a child that ends between that look and the suspension would wake no worker.

ALTER TABLE runs ADD COLUMN woken INTEGER NOT NULL DEFAULT 0;

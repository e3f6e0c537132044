-- The agents that workers have registered, each with what is needed to start a run of it without its code.

CREATE TABLE agents (
  name          TEXT    NOT NULL CHECK (length(name) > 0),
  code_version  TEXT    NOT NULL,
  data          BLOB    NOT NULL,
  registered_at INTEGER NOT NULL,
  PRIMARY KEY (name, code_version)
) STRICT, WITHOUT ROWID;

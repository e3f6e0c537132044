-- The agents that workers have registered, each with what is needed to start a run of it without its code.

CREATE TABLE holdfast.agents (
  name          text   NOT NULL CHECK (name <> ''),
  code_version  text   NOT NULL,
  data          bytea  NOT NULL,
  registered_at bigint NOT NULL,
  PRIMARY KEY (name, code_version)
);

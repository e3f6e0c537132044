"""Where the log lives: one protocol (`base`), two stores (`sqlite`, `postgres`)."""

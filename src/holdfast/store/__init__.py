"""Where logs are stored: one protocol (`base`), two stores (`sqlite`, `postgres`)."""

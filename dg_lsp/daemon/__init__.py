"""One model for all editors of a user: the daemon that holds it, and what stands between it and an editor."""

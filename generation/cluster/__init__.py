"""Many shards on many machines through Ray: the tasks, their heartbeats, and the status table."""

"""What a shard writes: snapshots to resume from, the finished tables, and uploads to a remote store."""

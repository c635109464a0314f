"""Reading the log, packs and snapshots where they are, in the bucket, by programs that only read."""

"""The write-ahead log: frames in files, written once per tick, synced by a thread."""

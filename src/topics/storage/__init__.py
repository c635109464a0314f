"""Bytes on disk: the log, packs, snapshots, and the only access to the file system."""

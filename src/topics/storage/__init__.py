"""Bytes on disk: the log, packs, snapshots, and the one seam to the file system."""

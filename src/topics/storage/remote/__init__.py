"""Packs that are only in the bucket: history that is larger than the disk."""

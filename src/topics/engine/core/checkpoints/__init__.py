"""Checkpoints: sealing, capturing and replacing what is on disk."""

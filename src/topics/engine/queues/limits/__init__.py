"""Limits of a queue: how many jobs are in flight, and how many are handed out per second, in all and per tag."""

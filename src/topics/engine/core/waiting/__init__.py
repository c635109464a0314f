"""Verbs that wait: the runner, deadlines, long polls, reads from disk."""

"""Webhooks: what is asked for, where it may go, and how it is signed."""

"""Transactions: staged records that become visible in several topics at once."""

"""Transactions: staged records that become part of several topics at once."""

"""Payloads as columns."""

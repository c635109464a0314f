"""Requests: their bodies, configurations, and limits."""

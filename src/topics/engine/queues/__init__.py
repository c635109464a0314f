"""Lease queues: claims, leases, delays, dead letters."""

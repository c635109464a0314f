"""Webhooks over HTTP: their routes, and the sending."""

"""Pipelines: definitions stored by the server, run by Spark."""

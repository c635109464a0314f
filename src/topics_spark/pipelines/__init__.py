"""Pipelines as data: definitions kept by the server, run by Spark."""

"""Routers: copies of a source's records in destinations."""

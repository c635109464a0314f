"""The HTTP API: a table of routes, one file per resource, and the checks that every request passes first."""

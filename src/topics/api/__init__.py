"""The HTTP API: a table of routes, one file per resource, and the checks that stand in front of all of them."""

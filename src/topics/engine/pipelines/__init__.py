"""Pipeline definitions and what their runners report."""

"""Pipeline definitions and the reports of their runners."""

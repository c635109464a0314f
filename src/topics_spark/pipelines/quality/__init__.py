"""The quality of rows: expectations while a pipeline runs, and tests of its definition."""

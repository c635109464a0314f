"""Schedules: records that the server appends at due times."""

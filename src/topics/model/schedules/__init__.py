"""When schedules are due, and their configuration."""

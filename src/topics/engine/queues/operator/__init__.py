"""What an operator sees of a queue, and does to its jobs."""

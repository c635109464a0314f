"""What is kept of jobs beyond their records: progress, what became of them, and the groups that they belong to."""

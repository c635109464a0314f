"""Opening a data directory, with recovery and repair, or only reading it."""

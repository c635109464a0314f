"""How a start finds its bucket, and what it has to know before it is primary there, or follows."""

"""`topics sql`: queries over live topics and archives, once or at a prompt."""

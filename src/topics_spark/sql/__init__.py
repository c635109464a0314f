"""`topics sql`: queries over live topics and archives, asked once or at a prompt."""

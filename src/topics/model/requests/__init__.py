"""What clients may ask for: request bodies, configurations, and their limits."""

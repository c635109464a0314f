"""Live reading: frames rendered once and shared by all followers."""

"""Live delivery: event streams, WebSocket, work streams."""

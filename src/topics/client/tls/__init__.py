"""TLS of the client: its files, and sockets that two threads may use."""

"""TLS below HTTP: the certificate that new connections get, and the connections themselves."""

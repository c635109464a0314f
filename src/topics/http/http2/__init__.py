"""HTTP/2 by prior knowledge: a connection, its streams, the writer of replies; the `h2` library keeps the protocol."""

"""The protocol layer: bytes of HTTP/1 and 2 become requests, replies become bytes; it knows nothing of topics."""

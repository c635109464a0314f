"""HTTP/1.0 and 1.1: a connection with its states, the reader of requests, the writer of replies."""

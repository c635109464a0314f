"""Connections of the asynchronous client: requests, streams, WebSockets."""

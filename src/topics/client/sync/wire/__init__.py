"""Connections of the synchronous client: requests, streams, WebSockets."""

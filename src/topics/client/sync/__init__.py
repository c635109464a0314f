"""The synchronous half of the client: made by tools/sync_half.py from the asynchronous half, except `primitives`."""

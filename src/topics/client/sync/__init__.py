"""The synchronous half of the client: all but `ground` is made from the asynchronous half by tools/sync_half.py."""

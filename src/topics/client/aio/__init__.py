"""The asynchronous half of the client, written by hand; the synchronous half is made from it."""

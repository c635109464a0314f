"""The state of all topics and the verbs that change it; no sockets, no threads."""

"""The part of a topic that is on disk: extents, packs, what stays in memory."""

"""The part of a topic that is on disk: extents, packs, and what stays in memory."""

"""One topic's records: blocks in memory and on disk, reading, retention, deletion."""

"""File descriptors: how many this process may have open, and how many of them connections may use.

    |<──────────────────────── limit (RLIMIT_NOFILE, raised as far as it goes) ────────────────────────>|
    |<── connections ──────────────────────────────────────>|<── refused, about to close ────>|<─ files ─>|

Files are the log, packs, snapshots, backups: a server that cannot open one cannot write. So connections are limited.
"""

from __future__ import annotations

import logging
import resource

log = logging.getLogger("topics.http")

# Packs kept open for reading (128), the log, a checkpoint's files, a backup's, the directories, the loop's own.
FILES_RESERVED = 256
# Connections that are accepted only to be refused; a burst of them is accepted before the first is closed.
REFUSED_MAX = 1024


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard one; returns the limit that holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            log.warning("the limit of open files stays at %d: %s", soft, error)
            return soft
    return hard


def connections_within(limit: int, wanted: int, *, asked: bool) -> int:
    """How many connections may be open at once: `wanted`, if that leaves enough descriptors for files.

    `asked`: an operator has set this number, so that a lower one is worth a warning.
    """
    allowed = limit - min(FILES_RESERVED + REFUSED_MAX, limit // 2)
    if allowed < wanted:
        log.log(
            logging.WARNING if asked else logging.INFO,
            "at most %d connections instead of %d: %d files may be open (ulimit -n), and some are kept for the log",
            allowed, wanted, limit,
        )  # fmt: skip
    return min(allowed, wanted)

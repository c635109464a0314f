"""The server's secret: 32 random bytes in a file that only its owner can read, created once and kept.

<dir>/stream.key                signs stream tokens; not part of a backup
"""

from __future__ import annotations

import logging
import os
import secrets

from topics.storage.disk import Disk, read_file, replace_file

logger = logging.getLogger("topics.storage")

SECRET_BYTES = 32
SECRET_NAME = "stream.key"


def read_secret(disk: Disk, data_dir: str) -> bytes | None:
    """None if there is no secret, or none that can be used."""
    path = os.path.join(data_dir, SECRET_NAME)
    try:
        secret = read_file(disk, path) if disk.exists(path) else b""
    except OSError as error:
        logger.warning("%s cannot be read: %s", path, error)
        return None
    return secret if len(secret) == SECRET_BYTES else None


def make_secret(disk: Disk, data_dir: str) -> bytes:
    """A new secret; if it cannot be written, it is valid for this process only."""
    secret = secrets.token_bytes(SECRET_BYTES)
    path = os.path.join(data_dir, SECRET_NAME)
    try:
        replace_file(disk, path, secret)
    except OSError as error:
        logger.warning("%s cannot be written; stream tokens will be invalid after a restart: %s", path, error)
    return secret

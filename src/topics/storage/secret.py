"""The server's own secret: 32 random bytes in a file that only its owner may read, made once and kept.

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
    """None if there is none yet, or none that can be used."""
    path = os.path.join(data_dir, SECRET_NAME)
    try:
        secret = read_file(disk, path) if disk.exists(path) else b""
    except OSError as error:
        logger.warning("%s cannot be read: %s", path, error)
        return None
    return secret if len(secret) == SECRET_BYTES else None


def make_secret(disk: Disk, data_dir: str) -> bytes:
    """A new one; if it cannot be kept, it lasts as long as this process."""
    secret = secrets.token_bytes(SECRET_BYTES)
    path = os.path.join(data_dir, SECRET_NAME)
    try:
        replace_file(disk, path, secret)
    except OSError as error:
        logger.warning("%s cannot be written, stream tokens end when this process does: %s", path, error)
    return secret

"""Errors as a program sees them: the classes that the client raises, so that `except` clauses hold for both."""

from __future__ import annotations

from topics.client.errors import KINDS, Internal, TopicsError
from topics.model import errors


class StorageError(Internal, errors.StorageError):
    """A disk refused; nothing of the call became visible."""


class DamagedData(Internal, errors.DamagedData):
    """Bytes on disk fail their checksum; the detail says where."""


def raised(error: errors.TopicsError) -> errors.TopicsError:
    """The engine's error as the client would raise it."""
    if isinstance(error, TopicsError):
        return error
    if isinstance(error, errors.DamagedData):
        kind: type[TopicsError] = DamagedData
    elif isinstance(error, errors.StorageError):
        kind = StorageError
    else:
        kind = KINDS.get(error.code, TopicsError)
    wait_ms = error.detail.get("retry_after_ms")
    return kind(
        error.message,
        code=error.code,
        detail=error.detail,
        retry_after_s=None if wait_ms is None else wait_ms / 1000,
    )

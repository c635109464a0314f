"""The table of operations: which request each takes, which scopes it needs, and what answers it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from topics.api.auth import Scope
from topics.api.sqs.exchange import Exchange
from topics.engine.core.pending import PendingChange
from topics.engine.core.waiting.runner import Steps

# The body of a request that sends nothing.
SMALL_BYTES_MAX: Final = 256 * 1024
# A batch of 1 MiB, each character escaped by three.
SENT_BYTES_MAX: Final = 4 * 1024 * 1024


class After(NamedTuple):
    """A result that is made once a change is published, in the same tick."""

    change: PendingChange
    result: Callable[[], msgspec.Struct | None]


class Operation(NamedTuple):
    request: type[msgspec.Struct]
    answer: Callable[[Exchange], Steps[Any]]
    scopes: Scope
    body_bytes_max: int = SMALL_BYTES_MAX

"""Transactions: records of many topics that become visible together, or not at all."""

from __future__ import annotations

import msgspec


class Staged(msgspec.Struct, kw_only=True):
    """A part that waits for its commit.

    `done`: the version was committed before, with token `fence`, and nothing is staged.
    """

    stage: str = ""
    part: int = 0
    records: int = 0
    bytes: int = 0
    expires_ms: int = 0
    done: bool = False
    fence: int = 0


class Span(msgspec.Struct, kw_only=True):
    """The range of a transaction's records in a topic."""

    first_seq: int
    last_seq: int
    records: int


class CommittedTxn(msgspec.Struct, kw_only=True):
    """`deduped`: this version, or a higher one, was committed before; nothing was written."""

    committed: bool
    version: int
    deduped: bool = False
    topics: dict[str, Span] = {}


class StageState(msgspec.Struct, kw_only=True):
    """A stage that waits for its commit. `owner` had the app's token when it was begun."""

    version: int
    stage: str
    parts: int
    records: int
    bytes: int
    expires_ms: int
    created_ms: int = 0
    owner: str | None = None


class Txn(msgspec.Struct, kw_only=True):
    """An app: the highest version it has committed, its fencing token, and its stages."""

    app: str
    version: int | None = None
    fence: int = 0
    stages: list[StageState] = []


class TxnItem(msgspec.Struct, kw_only=True):
    """An app in a list: the number of its stages, and their bytes."""

    app: str
    version: int | None = None
    fence: int = 0
    stages: int = 0
    bytes: int = 0


class Aborted(msgspec.Struct):
    aborted: int


class Fence(msgspec.Struct):
    fence: int


class Forgotten(msgspec.Struct):
    forgotten: bool


class TxnPage(msgspec.Struct):
    apps: list[TxnItem]
    next_cursor: str | None = None

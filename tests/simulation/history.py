"""What was asked and what was answered, in the order in which it began; and what happened to the server meanwhile."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Call:
    """One request of one client. A status of 0: no answer came, so it has happened or not, or will."""

    number: int
    client: str
    verb: str
    topic: str
    request: dict[str, Any]
    began_s: float
    ended_s: float = float("inf")
    status: int = 0
    answer: dict[str, Any] = field(default_factory=dict)
    # Whether its bytes can have reached the server at all; and on a second connection, at some time.
    sent: bool = False
    twice: bool = False
    # Which machine was asked, if there are several, and whether it said that its state is a copy.
    server: str = field(default="", repr=False)
    aged: bool = field(default=False, repr=False)

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def code(self) -> str:
        """Of the error that was answered, if one was."""
        return self._error.get("code", "")

    @property
    def _error(self) -> dict[str, Any]:
        """As in an answer of HTTP, or in a message of a WebSocket."""
        error = self.answer.get("error", self.answer)
        return error if isinstance(error, dict) else {}

    @property
    def waits(self) -> bool:
        """Whether it was refused while it was under way: the bucket is away, or another server has taken over."""
        written = self._error.get("detail", {}).get("written", self.code == "not_replicated")
        return self.code in ("not_replicated", "not_primary") and bool(written)

    @property
    def may_have_happened(self) -> bool:
        return self.ok or (self.status == 0 and self.sent) or self.twice or self.waits

    def __str__(self) -> str:
        request, answer = (json.dumps(part, separators=(",", ":"))[:300] for part in (self.request, self.answer))
        outcome = f"{self.status} {answer}" if self.status else "no answer" if self.sent else "not sent"
        at = f" at {self.server}" if self.server else ""
        return f"{self.began_s:.6f}–{self.ended_s:.6f} {self.client}{at} {self.verb} {self.topic} {request} → {outcome}"


@dataclass
class Event:
    """Something that happened to the server, its disk, its clock or the network."""

    at_s: float
    kind: str
    detail: str
    # Which machine, if there are several.
    machine: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"{self.at_s:.6f} *** {self.machine and self.machine + ': '}{self.kind} {self.detail}"


class History:
    """Everything that the checkers look at."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.events: list[Event] = []
        self.logged: list[str] = []

    def begin(self, client: str, verb: str, topic: str, request: dict[str, Any], now_s: float) -> Call:
        call = Call(len(self.calls), client, verb, topic, request, now_s)
        self.calls.append(call)
        return call

    def of(self, *verbs: str) -> Iterator[Call]:
        return (call for call in self.calls if call.verb in verbs)

    def times(self, *kinds: str) -> list[float]:
        return [event.at_s for event in self.events if event.kind in kinds]

    def digest(self, data_dir: str) -> str:
        """The same for the same history, wherever the data is: answers and log lines may name a file of it."""
        lines = hashlib.sha256()
        for entry in (*self.calls, *self.events):
            lines.update(repr(entry).replace(data_dir, "").encode())
        return lines.hexdigest()

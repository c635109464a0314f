"""One request in the API: its principal, its parameters, and its one reply."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from topics.http.refusal import Refusal
from topics.http.request import JSON, Bytes, Header, Request
from topics.http.service import log_bug
from topics.model.errors import InvalidRequest, Throttled, TopicsError
from topics.model.requests.mistakes import unknown_field

if TYPE_CHECKING:
    from topics.api.auth import Headers, Principal
    from topics.api.routes import Bound
    from topics.engine.core.waiting.runner import Task

_INTEGER = re.compile(r"-?[0-9]+", re.ASCII)
INTEGER_DIGITS_MAX = 19


class Call:
    """Holds one of its principal's in-flight slots from `take_slot` until its reply or until its client disconnects."""

    __slots__ = (
        "_holds_slot",
        "bound",
        "crowded",
        "headers",
        "must_finish",
        "name",
        "on_end",
        "params",
        "parked_s",
        "principal",
        "request",
        "sliced",
        "task",
        "throttled_s",
    )

    def __init__(self, request: Request, headers: Headers, bound: Bound, principal: Principal, name: str) -> None:
        self.request = request
        self.headers = headers
        self.bound = bound
        self.principal = principal
        self.name = name
        # the decoded body, if the route takes one
        self.params: Any = None
        # the body was large: it was decoded and checked slice by slice
        self.sliced = False
        self._holds_slot = False
        # it arrived when its principal had no slot left: it may still fail with an error, or be answered from memory
        self.crowded = False
        # the task that continues it while it waits, and what to undo after the reply or when its client disconnects
        self.task: Task[None] | None = None
        self.on_end: Callable[[], None] | None = None
        # part of it is done already: it continues even if its client disconnects
        self.must_finish = False
        # time spent waiting for the elastic throttle
        self.parked_s = 0.0
        self.throttled_s = 0.0

    # --- the slot ---

    def take_slot(self) -> None:
        self._holds_slot = True
        self.principal.inflight += 1

    def check_slot(self) -> None:
        if self.crowded:
            limit = self.principal.inflight_max
            raise Throttled("the key has too many requests in flight", limit="max_inflight_per_key", max=limit)

    def may_be_abandoned(self) -> None:
        """From here on the call ends when its client disconnects. Writes never do: a decided write is finished."""
        self.request.on_disconnect = self.end

    def waits(self, task: Task[None]) -> None:
        """The handler continues in this task; it ends when the client disconnects, unless it must finish."""
        if not task.over:
            self.task = task
            self.request.on_disconnect = self._client_gone

    def must_now_finish(self) -> None:
        self.must_finish = True

    def _client_gone(self) -> None:
        if self.task is not None and not self.must_finish:
            self.task.cancel()

    # --- the owner of a task ---

    @property
    def wanted(self) -> bool:
        return self.open or self.must_finish

    def done(self, result: None) -> None:
        """The steps have sent the reply."""

    def failed(self, error: Exception) -> None:
        if isinstance(error, TopicsError):
            self.fail(error)
        elif isinstance(error, Refusal):
            self.fail(InvalidRequest(error.message, **(error.detail or {})))
        else:
            self.fail_by_bug(error)

    def cancelled(self) -> None:
        self.end()

    def end(self) -> None:
        """Release everything: the reply is sent, or the client disconnected before it."""
        if self._holds_slot:
            self._holds_slot = False
            self.principal.inflight -= 1
        if self.on_end is not None:
            undo, self.on_end = self.on_end, None
            undo()
        # References to this call are dropped, so that no cycle is left for a collector that seldom runs.
        self.task = self.request.on_disconnect = None

    # --- the reply ---

    @property
    def open(self) -> bool:
        return not self.request.answered and not self.request.gone

    @property
    def elapsed_ms(self) -> float:
        return (perf_counter() - self.request.received_s) * 1000

    def reply(
        self,
        status: int,
        body: Bytes | Sequence[Bytes],
        content_type: bytes = JSON,
        *,
        headers: Sequence[Header] = (),
    ) -> None:
        self.end()
        self.request.reply(status, body, headers=headers, content_type=content_type)

    def fail(self, error: TopicsError) -> None:
        if not self.request.answered:
            self.end()
            self.bound.reply_error(self.request, error)

    def fail_by_bug(self, bug: Exception) -> None:
        trace_id = log_bug(self.request, bug)
        self.fail(TopicsError("a bug in the server, see its log", trace_id=trace_id))

    # --- the query ---

    def check_query(self) -> None:
        """For calls where an ignored field does harm: a misspelt `dry_run` would change the topic."""
        if self.request.query:
            known = [field.name for field in self.bound.route.query]
            for name, _ in self.request.query_pairs():
                if name not in known:
                    raise unknown_field(name, known)

    def flag(self, name: str, default: bool) -> bool:
        text = self.request.query_value(name)
        if text is None:
            return default
        if text in ("true", "1"):
            return True
        if text in ("false", "0"):
            return False
        raise InvalidRequest(f"{name} must be true or false", field=name)

    def integer(self, name: str, default: int) -> int:
        """A whole number; handlers clamp it, so a huge one need not be exact."""
        text = self.request.query_value(name)
        if text is None:
            return default
        if _INTEGER.fullmatch(text) is None:
            raise InvalidRequest(f"{name} must be a whole number", field=name)
        digits = text.lstrip("-0") or "0"
        size = int(digits) if len(digits) <= INTEGER_DIGITS_MAX else 10**INTEGER_DIGITS_MAX
        return -size if text.startswith("-") else size

    def text(self, name: str) -> str | None:
        return self.request.query_value(name)

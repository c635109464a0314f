"""The way into a family of routes that keeps another contract than the rest: who is let in, and how errors look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from topics.http.request import Request
from topics.model.errors import TopicsError

if TYPE_CHECKING:
    from topics.api.auth import Headers, Key


class Entrance(Protocol):
    """Given to a route, it takes the place of the API keys and of the usual error envelope."""

    # How OpenAPI calls this way of proving who one is; empty: nothing is asked for.
    scheme: str

    def authenticate(self, headers: Headers) -> Key:
        """Whom the request stands for; raises what `answer` then tells."""
        ...

    def answer(self, request: Request, error: TopicsError) -> None: ...

    def error_type(self, status: int) -> Any:
        """The shape of an error's body, for the documentation."""
        ...

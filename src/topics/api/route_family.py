"""A family of routes with a contract of its own: how a caller authenticates, and the form of errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from topics.http.request import Request
from topics.model.errors import TopicsError

if TYPE_CHECKING:
    from topics.api.auth import Headers, Principal


class RouteFamily(Protocol):
    """Set on a route, it replaces the API keys and the usual error envelope."""

    # The name of its security scheme in OpenAPI; empty: callers do not authenticate.
    scheme: str

    def authenticate(self, headers: Headers) -> Principal:
        """The principal; raises an error for `reply_error` to render."""
        ...

    def reply_error(self, request: Request, error: TopicsError) -> None: ...

    def error_type(self, status: int) -> Any:
        """The shape of an error's body, for the documentation."""
        ...

"""Lists a page at a time: the query fields that all lists share, and their values in a call."""

from __future__ import annotations

from typing import NamedTuple

from topics.api.call import Call
from topics.api.routes import QueryField
from topics.engine.core.listing import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX

NAME_PREFIX = QueryField("prefix", str, "Only names that start with this.")


class PageParams(NamedTuple):
    prefix: str
    cursor: str | None
    size: int


def page_query(what: str) -> tuple[QueryField, QueryField]:
    """Fields of a list of `what`, a plural; a list of names has NAME_PREFIX as well."""
    return (
        QueryField("page_size", int, f"{what} per reply, 1 to {PAGE_SIZE_MAX}.", default=PAGE_SIZE_DEFAULT),
        QueryField("cursor", str, "The next_cursor of the previous page."),
    )


def page_params(call: Call) -> PageParams:
    size = max(1, min(PAGE_SIZE_MAX, call.integer("page_size", PAGE_SIZE_DEFAULT)))
    return PageParams(call.text("prefix") or "", call.text("cursor"), size)

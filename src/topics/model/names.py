"""Topic and router names: which ones are valid, and how lists of topics are sorted."""

from __future__ import annotations

import re
from typing import Literal

from topics.model.errors import InvalidRequest

_TOPIC_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}", re.ASCII)
_ROUTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}", re.ASCII)
SHOWN_CHARS_MAX = 64

TopicOrder = Literal["name", "records", "bytes", "written", "-records", "-bytes", "-written"]


def check_topic_name(name: str, field: str = "topic") -> str:
    if _TOPIC_NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"{field} must be 1 to 255 characters of A-Z a-z 0-9 . _ : - and start with a letter or digit, "
            f"not {name[:SHOWN_CHARS_MAX]!r}",
            field=field,
        )
    return name


def check_router_name(name: str, field: str = "router") -> str:
    """As for a topic, but `>` is allowed as well: `orders->audit`."""
    if _ROUTER_NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"{field} must be 1 to 255 characters of A-Z a-z 0-9 . _ : - > and start with a letter or digit, "
            f"not {name[:SHOWN_CHARS_MAX]!r}",
            field=field,
        )
    return name

"""Router configuration: the request, and the resolved configuration."""

from __future__ import annotations

from typing import Literal

import msgspec

from topics.model.errors import InvalidRequest
from topics.model.names import check_topic_name
from topics.model.requests.records import TagMatch, parse_match

Guarantee = Literal["at_least_once", "exactly_once"]


class RouterRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a PUT: `null` means absent."""

    source: str
    dest: str
    preserve_node: bool | None = True
    preserve_tag: bool | None = True
    create_dest: bool | None = True
    filter: str | list[str] | None = None
    allow_cycle: bool | None = False
    guarantee: Guarantee | None = "at_least_once"
    # A new router starts at the source's earliest record instead of its head.
    backfill: bool | None = False


class RouterConfig(msgspec.Struct, frozen=True):
    """A resolved configuration: what is stored and shown."""

    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    filter: str | list[str] | None = None
    allow_cycle: bool = False
    guarantee: Guarantee = "at_least_once"

    def match(self) -> TagMatch | None:
        return None if self.filter is None else parse_match(self.filter, "filter")


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(RouterConfig)


def encode_router_config(config: RouterConfig) -> bytes:
    return _encoder.encode(config)


def decode_router_config(data: bytes) -> RouterConfig:
    return _decoder.decode(data)


def resolve_router(request: RouterRequest, tag_bytes_max: int) -> RouterConfig:
    """Fill in defaults; refuse a configuration that cannot work."""
    check_topic_name(request.source, "source")
    check_topic_name(request.dest, "dest")
    if request.source == request.dest:
        raise InvalidRequest("dest must be a topic other than source", field="dest")
    config = RouterConfig(
        source=request.source,
        dest=request.dest,
        preserve_node=request.preserve_node is not False,
        preserve_tag=request.preserve_tag is not False,
        filter=request.filter,
        allow_cycle=bool(request.allow_cycle),
        guarantee=request.guarantee or "at_least_once",
    )
    match = config.match()
    if match is not None and len(match.tag) > tag_bytes_max:
        raise InvalidRequest(f"filter: a tag must be at most {tag_bytes_max} bytes", field="filter", max=tag_bytes_max)
    return config

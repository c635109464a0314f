"""Every limit of the protocol layer, with its unit in its name."""

from __future__ import annotations

import resource
from dataclasses import dataclass

from topics.http.descriptors import connections_within
from topics.model.settings import Settings

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one listener allows; the defaults suit a server on a public network."""

    connections_max: int = 20_000
    # This many more get a 429; beyond these, connections are closed without one.
    refused_max: int = 64

    # TLS: from the first byte to the last of a handshake
    handshake_ms_max: int = 10_000

    # the head of a request
    uri_bytes_max: int = 8 * KIB
    header_bytes_max: int = 32 * KIB
    header_count_max: int = 100
    head_ms_max: int = 10_000

    # the body of a request; a body above `large_body_bytes` waits for memory from the one budget of all connections
    body_bytes_max: int = 64 * MIB
    body_ms_max: int = 30_000
    body_bytes_per_s_min: int = 16 * KIB
    large_body_bytes: int = MIB
    # a larger body is handled in a turn of its own, see `http/loop/tick.py`
    turn_body_bytes: int = 128 * KIB
    large_body_bytes_per_s_min: int = 256 * KIB
    large_bodies_bytes_max: int = 512 * MIB

    # one connection
    pipelined_max: int = 64
    idle_ms_max: int = 75_000
    write_high_bytes: int = 64 * KIB
    write_low_bytes: int = 16 * KIB
    write_stall_ms_max: int = 60_000
    unsent_bytes_max: int = MIB
    linger_ms_max: int = 3_000
    linger_bytes_max: int = 4 * MIB

    # one HTTP/2 connection
    h2_streams_max: int = 128
    h2_window_bytes: int = 64 * KIB - 1
    h2_resets_max: int = 1_000
    h2_control_frames_max: int = 2_000
    h2_control_frames_per_s: int = 100

    # gzip: smaller replies are not compressed; above the other limit a thread does the work
    gzip_reply_bytes_min: int = KIB
    gzip_inline_bytes_max: int = 64 * KIB

    def __post_init__(self) -> None:
        assert self.large_bodies_bytes_max >= self.body_bytes_max, "one body must fit the budget of all"
        assert self.write_low_bytes <= self.write_high_bytes
        assert self.pipelined_max > 0


def http_limits(settings: Settings) -> HttpLimits:
    """A large body is judged when its length is known; that limit must not exceed what is allowed at all."""
    usual = HttpLimits()
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    body_bytes_max = settings.max_body_bytes
    return HttpLimits(
        connections_max=connections_within(
            limit, settings.max_connections, asked=settings.max_connections != Settings().max_connections
        ),
        body_bytes_max=body_bytes_max,
        large_body_bytes=min(usual.large_body_bytes, body_bytes_max),
        large_bodies_bytes_max=max(usual.large_bodies_bytes_max, body_bytes_max),
        # A request on a connection sees what the one before it did.
        pipelined_max=1,
    )

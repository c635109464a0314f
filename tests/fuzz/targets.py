"""Everything of the product that reads bytes which it has not made: what is fed to it, and what must hold of any bytes.

A target returns or raises AssertionError; any other exception is a finding as well. `make fuzz` searches with them,
test_fuzz.py runs their seeds, the files of findings, and some hundred changed seeds of each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.fuzz import connections, decoders, files, sqs_requests

CORPUS = Path(__file__).parent / "corpus"


class Target(NamedTuple):
    """`seeds` are inputs that get far into it; `run` feeds one input."""

    seeds: Callable[[], list[bytes]]
    run: Callable[[bytes], None]


TARGETS: dict[str, Target] = {
    "http1": Target(connections.http1_seeds, connections.feed),
    "http2": Target(connections.http2_seeds, connections.feed),
    "websocket": Target(connections.websocket_seeds, connections.feed_websocket),
    "target": Target(decoders.target_seeds, decoders.read_target),
    "gzip": Target(decoders.gzip_seeds, decoders.decompress),
    "body": Target(decoders.body_seeds, decoders.read_body),
    "cloudevents": Target(decoders.event_seeds, decoders.read_events),
    "cursor": Target(decoders.cursor_seeds, decoders.read_cursor),
    "token": Target(decoders.token_seeds, decoders.read_token),
    "claims": Target(decoders.claims_seeds, decoders.read_claims),
    "stream-token": Target(decoders.stream_token_seeds, decoders.read_stream_token),
    "sqs": Target(sqs_requests.request_seeds, sqs_requests.read_request),
    "sqs-signature": Target(sqs_requests.signature_seeds, sqs_requests.read_signature),
    "log": Target(files.log_seeds, files.read_log),
    "sync-mark": Target(files.mark_seeds, files.read_mark),
    "pack": Target(files.pack_seeds, files.read_pack),
    "extent": Target(files.extent_seeds, files.read_extent),
    "snapshot": Target(files.snapshot_seeds, files.read_snapshot),
    "backup": Target(files.backup_seeds, files.read_backup),
    "meta": Target(files.meta_seeds, files.read_meta),
}


def findings(name: str) -> list[Path]:
    """Inputs that once broke it."""
    return sorted((CORPUS / name).glob("*"))


@cache
def inputs(name: str) -> list[bytes]:
    """Its seeds and its findings."""
    return [*TARGETS[name].seeds(), *(path.read_bytes() for path in findings(name))]

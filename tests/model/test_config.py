"""Topic configuration: fields, defaults, clamps, and what a request may contain."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.decoders import config_decoder
from topics.model.errors import InvalidRequest
from topics.model.requests.config import TopicConfig, decode_config, encode_config, resolve
from topics.model.requests.records import decode_body


def resolved(**fields: Any) -> TopicConfig:
    return resolve(decode_body(config_decoder, msgspec.json.encode(fields)), "t")


def test_an_empty_wish_takes_every_documented_default() -> None:
    assert msgspec.to_builtins(resolved()) == {
        "type": "log",
        "ttl_ms": 0,
        "cap_records": 0,
        "cap_bytes": 0,
        "discard": "old",
        "durable": False,
        "durability": "disk",
        "priority": None,
        "auto_priority": True,
        "auto_create": True,
        "idempotency_window_ms": 120_000,
        "dedupe_node": True,
        "lease_ms": 30_000,
        "claim_jitter_ms": 0,
        "max_deliveries": 0,
        "dead_letter": None,
        "leases_durable": False,
    }


@pytest.mark.parametrize(
    ("field", "asked", "kept"),
    [
        ("priority", 1001, 1000),
        ("priority", -1001, -1000),
        ("priority", 10**30, 1000),
        ("priority", 0, 0),
        ("lease_ms", 0, 100),
        ("lease_ms", 99, 100),
        ("lease_ms", 100, 100),
        ("lease_ms", 86_400_001, 86_400_000),
        ("claim_jitter_ms", 5001, 5000),
        ("claim_jitter_ms", 5000, 5000),
    ],
)
def test_a_value_out_of_range_is_clamped_in_what_is_stored(field: str, asked: int, kept: int) -> None:
    assert getattr(resolved(**{field: asked}), field) == kept


@pytest.mark.parametrize(
    ("fields", "durability", "durable"),
    [
        ({}, "disk", False),
        ({"durable": False}, "disk", False),
        ({"durable": True}, "fsync", True),
        ({"durability": "memory", "durable": True}, "memory", False),
        ({"durability": "fsync", "durable": False}, "fsync", True),
        ({"durability": "ephemeral"}, "ephemeral", False),
        ({"durability": "disk", "durable": True}, "disk", False),
        ({"durability": None, "durable": True}, "fsync", True),
    ],
)
def test_an_explicit_class_wins_and_durable_reports_it(fields: Any, durability: str, durable: bool) -> None:
    config = resolved(**fields)
    assert (config.durability, config.durable) == (durability, durable)


@pytest.mark.parametrize(
    "field",
    ["ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "lease_ms", "claim_jitter_ms", "max_deliveries"],
)
@pytest.mark.parametrize("value", [None, -1, "1", 1.5, True, [], {}])
def test_a_number_that_is_none_is_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        resolved(**{field: value})
    assert field in caught.value.detail["field"]


@pytest.mark.parametrize("field", ["ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "max_deliveries"])
def test_a_number_may_use_all_of_64_bits_and_no_more(field: str) -> None:
    assert getattr(resolved(**{field: 2**64 - 1}), field) == 2**64 - 1
    with pytest.raises(InvalidRequest):
        resolved(**{field: 2**64})


@pytest.mark.parametrize(
    "field",
    [
        "type",
        "discard",
        "durable",
        "durability",
        "priority",
        "auto_priority",
        "auto_create",
        "dedupe_node",
        "dead_letter",
        "leases_durable",
    ],
)
def test_null_means_absent_for_what_is_no_number(field: str) -> None:
    assert resolved(**{field: None}) == TopicConfig()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("type", "stream"),
        ("type", 1),
        ("discard", "new"),
        ("durable", "yes"),
        ("durable", 1),
        ("durability", "tape"),
        ("priority", "high"),
        ("priority", 1.5),
        ("auto_priority", 0),
        ("auto_create", "true"),
        ("dedupe_node", 1),
        ("dead_letter", 5),
        ("dead_letter", ""),
        ("dead_letter", "a/b"),
        ("dead_letter", "t"),
        ("leases_durable", "no"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        resolved(**{field: value})
    assert field in caught.value.detail["field"]


def test_a_configuration_reads_back_as_it_was_written() -> None:
    config = resolved(
        type="queue", ttl_ms=2**64 - 1, priority=-7, durability="memory", dead_letter="d", max_deliveries=3
    )
    assert decode_config(encode_config(config)) == config


LIMITS: dict[str, float] = {
    "max_in_flight": 3,
    "max_in_flight_per_tag": 1,
    "rate_per_s": 0.5,
    "burst": 2,
    "rate_per_s_per_tag": 7.0,
    "burst_per_tag": 1_000_000_000,
}


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_limits_are_shown_and_stored_only_if_they_are_set(kind: str) -> None:
    config = resolved(type=kind, **LIMITS)
    shown = msgspec.to_builtins(config)
    assert {name: shown[name] for name in LIMITS} == LIMITS
    assert decode_config(encode_config(config)) == config
    assert resolved(type=kind, **dict.fromkeys(LIMITS)) == resolved(type=kind)
    assert not set(LIMITS) & set(msgspec.to_builtins(resolved(type=kind)))


@pytest.mark.parametrize("field", LIMITS)
@pytest.mark.parametrize("wrong", [0, -1, 10**10, "3", True, [1]])
def test_a_limit_that_cannot_hold_is_refused(field: str, wrong: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        resolved(**{field: wrong})
    assert refused.value.detail["field"] == field


@pytest.mark.parametrize("field", [name for name, limit in LIMITS.items() if isinstance(limit, int)])
def test_a_number_of_jobs_is_whole(field: str) -> None:
    with pytest.raises(InvalidRequest):
        resolved(**{field: 1.5})

"""Documented import paths of earlier versions still work."""

from importlib import import_module

import pytest


@pytest.mark.parametrize(
    ("path", "now"),
    [
        ("topics.model.consuming.partition_for", "topics.model.requests.groups.partition_for"),
        ("topics.engine.scan.Scan", "topics.engine.opening.scan.Scan"),
        ("topics.engine.scan.read_part", "topics.engine.opening.scan.read_part"),
        ("topics.model.clock.ManualClock", "topics.model.clock.ManualClock"),
        ("topics.testing.fixtures.topics_client", "topics.testing.fixtures.topics_client"),
    ],
)
def test_a_documented_path_leads_to_what_it_named(path: str, now: str) -> None:
    assert found(path) is found(now)


def found(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)

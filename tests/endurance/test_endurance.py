"""A few seconds of the load of `make endurance`, and a verdict that can tell growth from noise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.endurance.__main__ import endure
from tests.endurance.sampling import Sample, what_grew

FLAT = [Sample(number, 100.0 + number % 3, 40, 8, 30 + number % 4, 50.0, 0.5, 2.0) for number in range(60)]


def test_a_flat_run_is_flat_and_a_leak_is_told() -> None:
    assert not what_grew(FLAT)
    leaking = [one._replace(descriptors=one.descriptors + 2 * number) for number, one in enumerate(FLAT)]
    assert what_grew(leaking) == ["descriptors was 99.0 and is 139.0"]


@pytest.mark.slow
def test_every_part_of_the_load_works(tmp_path: Path) -> None:
    samples, load = endure(tmp_path, 6.0)
    assert not load.failures
    assert len(samples) > 5
    assert load.calls > 20

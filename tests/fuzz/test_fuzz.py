"""Every reader of foreign bytes takes its seeds, what once broke it, and some hundred changed ones.

`make fuzz` searches longer.
"""

from __future__ import annotations

import random

import pytest

from tests.fuzz.mutation import changed
from tests.fuzz.targets import CORPUS, TARGETS, findings, inputs

CHANGED = 300


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_findings_are_read(name: str) -> None:
    for data in inputs(name):
        TARGETS[name].run(data)


@pytest.mark.parametrize("name", TARGETS)
def test_changed_inputs_are_read_or_refused(name: str) -> None:
    rng = random.Random(f"fuzz {name}")
    for _ in range(CHANGED):
        data = changed(rng.choice(inputs(name)), inputs(name), rng)
        try:
            TARGETS[name].run(data)
        except BaseException as error:
            error.add_note(f"the input: {data!r}")
            raise


def test_every_file_of_the_corpus_belongs_to_a_target() -> None:
    kept = {path for path in CORPUS.rglob("*") if path.is_file()}
    assert kept == {path for name in TARGETS for path in findings(name)}

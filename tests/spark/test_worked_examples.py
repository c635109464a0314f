"""docs/PIPELINES.md: the example from dirty events to a Delta table is a stream and passes its own test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.pipeline_world import World
from topics_spark.pipelines.checking import check_streaming
from topics_spark.pipelines.definition import load_cases

PAGE = (Path(__file__).parents[2] / "docs" / "PIPELINES.md").read_text()


@pytest.mark.slow
def test_the_example_of_a_delta_table_is_a_stream_and_passes_its_test(world: World, tmp_path: Path) -> None:
    example = PAGE.partition("## From dirty events to a Delta table")[2].partition("```toml\n")[2].partition("```")[0]
    file = tmp_path / "orders-table.toml"
    file.write_text(example)
    ((name, (definition, (case,))),) = load_cases(file).items()
    check_streaming(world.spark.newSession(), name, definition, world.config)
    assert world.try_case(name, definition, case) == []
    assert definition.sink is not None
    assert definition.sink.format == "delta"

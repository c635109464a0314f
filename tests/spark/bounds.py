"""Bounded batches in tests: Spark 4.1 does not let a source written in Python bound them."""

from typing import Any

import pytest

from topics_spark.source.limits import LIMITED

needs_bounds = pytest.mark.skipif(not LIMITED, reason="Spark 4.1 does not let a source bound its batches")
needs_empty_batches = pytest.mark.skipif(not LIMITED, reason="Spark 4.1 closes windows with the next rows")
# Under AvailableNow it also ends after one batch, which may be one that is repeated after a crash.
RUNS_TO_THE_END = 1 if LIMITED else 2


def bounded(offsets: int) -> dict[str, Any]:
    """The option, where there is one: otherwise a batch has everything."""
    return {"maxOffsetsPerTrigger": offsets} if LIMITED else {}

"""docs/SPARK.md does what it says."""

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.serving import Client, ServerProcess
from tests.spark.conftest import SECRET
from topics_spark.options import KNOWN
from topics_spark.sink import data_sink as sink

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "SPARK.md").read_text()


def test_every_option_is_on_the_page() -> None:
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    told = {name.lower() for row in rows for name in re.findall(r"`(\w+)`", row)}
    # Kafka's name for `includeMeta` is taken, too.
    assert (KNOWN | {name.lower() for name in sink.KNOWN}) - told == {"includeheaders"}


@pytest.mark.slow
@pytest.mark.timeout(720)
def test_the_page_can_be_copied(
    spark: SparkSession, server: ServerProcess, client: Client, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Python workers have the environment that Spark was started with: here, the server is named by options."""
    client.post("/v0/topics/orders", {"records": [{"data": {"id": 1, "price": 2.5}, "tag": "a"}] * 3})
    where = f'.options(url="http://127.0.0.1:{server.port}", key="{SECRET}")'
    names: dict[str, Any] = {"spark": spark}
    blocks = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "s3://" not in block]
    assert len(blocks) == 4
    for block in blocks:
        block = re.sub(r'(\.format\("topics"\))', rf"\1{where}", block).replace("/checkpoints", str(tmp_path))
        exec(block.replace(".start()", ".trigger(availableNow=True).start().awaitTermination()"), names)
    assert names["typed"].select("data.id", "data.price").first() == (1, 2.5)
    assert names["found"].select("data.price").first() == (2.5,)
    assert names["any_shape"].first() == (2.5,)
    assert client.payloads("orders-copy") == [{"id": 1, "price": 2.5}] * 3
    for _ in range(2):
        names["write"](spark.createDataFrame([('{"id": 1}',)], "data STRING"), 0)
    assert client.payloads("copy") == [{"id": 1}]
    assert re.search(r"\|\s*a\|\s+3\|", capfd.readouterr().out)

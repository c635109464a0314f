"""Views of a run of records: cut from its bytes in one go, they are what rendering each record gives."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from topics.engine.log.block import Block
from topics.engine.log.reading import View, render_run, render_view
from topics.model.requests.batch import render
from topics.model.requests.records import append_decoder

TEXTS = st.sampled_from(["", "a", 'q"', "b\\", "ü\n", ',"data":', "x" * 600])
RECORDS = st.fixed_dictionaries(
    {"data": st.sampled_from([1, ',"data":', {"data": {"meta": 2}}, [None]])},
    optional={"tag": TEXTS, "node": TEXTS, "meta": st.sampled_from([{}, {"meta": 1}, {"data": [1]}])},
)


@given(
    wished=st.lists(RECORDS, min_size=1, max_size=8),
    spaced=st.booleans(),
    tags=st.booleans(),
    meta=st.booleans(),
    lines=st.booleans(),
    data=st.data(),
)
@settings(max_examples=examples(100))
def test_a_run_is_rendered_as_its_records_are(
    wished: list[dict[str, Any]], spaced: bool, tags: bool, meta: bool, lines: bool, data: st.DataObject
) -> None:
    sent = json.dumps({"records": wished}, indent=1 if spaced else None).encode()
    block = Block.whole(render(append_decoder.decode(sent), 9, 1_748_450_001_000, bare=False), 0)
    body = block.body
    assert body is not None
    start = data.draw(st.integers(0, block.count - 1))
    stop = data.draw(st.integers(start + 1, block.count))
    view = View(tags=tags, meta=meta, lines=lines)
    each = [render_view(body, number, view) for number in range(start, stop)]
    run = render_run(body, start, stop, view)
    assert run == (b"" if lines else b",").join(each)
    if lines:
        shown = [json.loads(line) for line in run.split(b"\n")[:-1]]
        assert [record["data"] for record in shown] == [record["data"] for record in wished[start:stop]]
        assert [record.get("$tag") for record in shown] == [
            record.get("tag") if tags else None for record in wished[start:stop]
        ]

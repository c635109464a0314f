"""What the benches write: figures, tables, parts of docs/BENCHMARKS.md, and pictures, from results made by hand."""

import importlib
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench import cpu, peers
from bench.__main__ import names
from bench.load import trees
from bench.load.directories import file_system
from bench.load.trees import Tree, TreeUnusable, tree_of
from bench.report import contest, page
from bench.report.contest import Entrant, Results
from bench.report.figures import Spread, number, percentile, spread, table
from bench.report.pictures import Bar, Group, picture

OURS = "topics abc, compiled"
REDIS = "Redis 7 Streams"
BARE = "bare uvloop + httptools"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def results() -> Results:
    """Ahead of Redis by batches, behind by single records, in rounds of different speed."""
    found = Results(
        [Entrant(OURS, "own", "written"), Entrant(REDIS, "bar", "as well"), Entrant(BARE, "limit", "nothing")]
    )
    for number_of_round, speed in enumerate((1.0, 0.5, 2.0), 1):
        found.add("append 1, 16", OURS, number_of_round, 10_000 * speed)
        found.add("append 1, 16", REDIS, number_of_round, 20_000 * speed)
        found.add("append 100", OURS, number_of_round, 600_000 * speed)
        found.add("append 100", REDIS, number_of_round, 300_000 * speed)
        found.add("append 1, 1, p50", OURS, number_of_round, 0.2 / speed)
        found.add("append 1, 1, p50", BARE, number_of_round, 0.1 / speed)
    return found


def test_every_module_of_the_benches_can_be_imported() -> None:
    assert {"cpu", "peers", "http", "live"} <= set(names())
    for name in names():
        importlib.import_module(f"bench.{name}")


def test_a_spread_is_a_median_and_its_range() -> None:
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert spread([55.14, 53.0, 61.2]).shown("µs") == "55.1 µs (53.0 to 61.2)"
    assert spread([7.0]).shown("ms") == "7.00 ms"
    assert percentile([5, 1, 4, 2, 3], 0.5) == 3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0312, "0.031"),
        (1.5, "1.50"),
        (12.34, "12.3"),
        (99.97, "100"),
        (999.4, "999"),
        (13_579, "13,600"),
        (0, "0.00"),
    ],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_a_table_is_markdown() -> None:
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n"


def test_a_part_of_the_page_is_replaced_and_nothing_else() -> None:
    text = "before\n<!-- bench:x -->\nold\n<!-- /bench:x -->\nafter <!-- bench:y --><!-- /bench:y -->\n"
    new = page.replaced(text, "x", "| new |")
    assert new == "before\n<!-- bench:x -->\n\n| new |\n\n<!-- /bench:x -->\nafter <!-- bench:y --><!-- /bench:y -->\n"
    assert page.part(new, "x") == "| new |"
    assert page.replaced(new, "x", "| new |") == new
    with pytest.raises(page.MarkersMissing, match="bench:z"):
        page.replaced(text, "z", "")


def test_the_page_has_a_place_for_each_part() -> None:
    text = page.PAGE.read_text()
    for name in ("cpu", "cpu-history", "peers"):
        page.part(text, name)


def test_nothing_is_written_unless_it_is_wanted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text("<!-- bench:x -->\n<!-- /bench:x -->\n")
    monkeypatch.setattr(page, "PAGE", file)
    monkeypatch.setattr(page, "PICTURES", tmp_path / "pictures")
    monkeypatch.delenv("BENCH_WRITE", raising=False)
    page.write({"x": "content"}, {"p": "<svg/>"})
    assert "content" not in file.read_text()
    monkeypatch.setenv("BENCH_WRITE", "1")
    page.write({"x": "content"}, {"p": "<svg/>"})
    assert page.part(file.read_text(), "x") == "content"
    assert (tmp_path / "pictures" / "p.svg").read_text() == "<svg/>"


def test_history_keeps_older_trees_and_replaces_the_same_one() -> None:
    head = "| tree | a |"
    first = page.with_history("", head, ["| one | 1 |"])
    assert first == "| tree | a |\n| --- | --- |\n| one | 1 |"
    second = page.with_history(first, head, ["| two | 2 |"])
    assert second.splitlines()[2:] == ["| two | 2 |", "| one | 1 |"]
    assert page.with_history(second, head, ["| one | 3 |"]).splitlines()[2:] == ["| one | 3 |", "| two | 2 |"]
    assert page.with_history(second, "| tree | other |", ["| x | 1 |"]).splitlines()[2:] == ["| x | 1 |"]
    many = page.with_history(second, head, [f"| {each} | 0 |" for each in range(100)])
    assert len(many.splitlines()) == 2 + page.HISTORY_ROWS_MAX


def test_a_picture_is_drawn_to_scale_for_light_and_dark() -> None:
    bars = [Bar("a <b>", Spread(50.0, 40.0, 100.0), "own"), Bar("c", Spread(25.0, 25.0, 25.0))]
    text = picture("title", [Group("work", "ms", bars)])
    root = ET.fromstring(text)
    widths = [float(rect.attrib["width"]) for rect in root.iter(f"{SVG}rect")]
    assert widths[0] == 2 * widths[1]
    assert [rect.attrib["class"] for rect in root.iter(f"{SVG}rect")] == ["own", "bar"]
    assert len(list(root.iter(f"{SVG}line"))) == 1
    assert "a <b>" in [each.text for each in root.iter(f"{SVG}text")]
    assert "prefers-color-scheme: dark" in text


def test_ratios_compare_figures_of_the_same_round(results: Results) -> None:
    rows = {row.key: row for row in contest.ROWS}
    assert results.ratio(rows["append 1, 16"], OURS, REDIS) == Spread(0.5, 0.5, 0.5)
    assert results.ratio(rows["append 1, 1, p50"], OURS, BARE) == Spread(0.5, 0.5, 0.5)
    assert results.ratio(rows["recovery"], OURS, REDIS) is None


def test_a_row_that_is_lost_is_in_the_table_and_a_limit_is_no_rival(results: Results) -> None:
    lines = contest.ratio_table(results).splitlines()
    (single,) = (line for line in lines if line.startswith("| append 1 record, 16"))
    assert "**0.500: behind**" in single
    (batched,) = (line for line in lines if line.startswith("| append 100 records"))
    assert batched.endswith("| 2.00 |")
    (latency,) = (line for line in lines if line.startswith("| append 1 record, 1 connection"))
    assert latency.endswith("| 0.500 |")


def test_what_is_wanted_is_reached_missed_or_not_measured(results: Results) -> None:
    lines = contest.wanted_table(results).splitlines()
    verdicts = {line.split(" | ")[0]: line for line in lines}
    assert verdicts["| append 1 record, 16 connections, against `XADD`"].endswith("| **no** |")
    assert verdicts["| append 100 records, 16 connections, against `XADD`, `everysec`"].endswith("| yes |")
    assert "not measured" in verdicts["| append 100 records, 16 connections, synced, against `XADD`, `always`"]
    # 0.2 ms beside a bare server with 0.1 ms
    assert verdicts["| append 1 record, 1 connection, p50"].endswith("| **no** |")


def test_the_report_of_a_contest_says_what_was_left_out(results: Results) -> None:
    results.notes.append("NATS is left out: there is no Go")
    text = peers.report(results, 3, "Commit abc.")
    assert "NATS is left out: there is no Go" in text
    assert "| Redis 7 Streams | as well |" in text
    for name in contest.pictures(results):
        assert f"pictures/{name}.svg" in text
    for drawn in contest.pictures(results).values():
        ET.fromstring(drawn)


def test_processor_time_is_told_for_each_call_and_tree() -> None:
    samples = {(call.what, name): [10.0, 12.0, 11.0] for call in cpu.CALLS for name in ("old", "new")}
    samples["append 1 record", "new"] = [5.5, 5.5, 5.5]
    lines = cpu.shown(samples, ["old", "new"]).splitlines()
    assert len(lines) == 2 + len(cpu.CALLS) == 12
    assert (
        lines[2]
        == "| append 1 record | 28 compiled, 42 pure | 11.0 µs (10.0 to 12.0) | 5.50 µs | 0.50 (0.46 to 0.55) |"
    )
    history = cpu.history_rows(samples, ["old", "new"], "2026-11-17")
    assert all(row.count("|") == cpu.history_head().count("|") for row in history)
    ET.fromstring(cpu.drawn(samples, ["old", "new"]))


def test_trees_are_directories_or_revisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "copy" / "topics"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    assert tree_of(str(tmp_path / "copy")) == Tree("copy, pure", tmp_path / "copy")
    (package / "fast.so").touch()
    assert tree_of(str(tmp_path / "copy")).name == "copy, compiled"
    with pytest.raises(TreeUnusable, match="no package `topics`"):
        tree_of(str(package))
    with pytest.raises(TreeUnusable, match="neither a revision nor a directory"):
        tree_of("no-such-revision")
    monkeypatch.setenv("BENCH_TREES", f"{tmp_path / 'copy'}, {tmp_path / 'copy'}")
    assert [tree.name for tree in trees.trees()] == ["copy, compiled #1", "copy, compiled #2"]


def test_a_file_system_in_memory_is_told_from_a_disk() -> None:
    assert file_system(Path("/proc")) == "proc"

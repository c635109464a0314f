"""Options: what they mean, and what is said about those that mean nothing."""

import pytest

from topics_spark.errors import OptionError
from topics_spark.options import EARLIEST, LATEST, Bound, SourceOptions, Subscription


def parse(**options: str) -> SourceOptions:
    return SourceOptions.parse({"subscribe": "orders", **options})


def test_names_do_not_mind_their_case() -> None:
    assert parse(MAXOFFSETSPERTRIGGER="7", failondataloss="FALSE").offsets_per_trigger_max == 7
    assert parse(failondataloss="FALSE").fail_on_data_loss is False


def test_a_server_is_found_where_the_client_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_URL", "http://there:1/")
    monkeypatch.setenv("TOPICS_API_KEY", "hush")
    assert (parse().url, parse().key) == ("http://there:1", "hush")
    assert parse(url="http://here:2", key="psst").url == "http://here:2"
    assert parse(path="/data").url is None, "files alone need no server"


def test_the_key_is_in_no_text_made_of_the_options() -> None:
    assert "hush" not in repr(parse(key="hush"))
    assert "hush" not in str(parse(key="hush"))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("subscribe", " , "),
        ("assign", "nonsense"),
        ("assign", "[]"),
        ("assign", '{"a": ["x"]}'),
        ("subscribePattern", "("),
        ("startingOffsets", "soon"),
        ("startingOffsets", '{"orders": "x"}'),
        ("startingOffsets", '{"orders": -3}'),
        ("startingTimestamp", "-1"),
        ("startingOffsetsByTimestamp", '{"orders": -1}'),
        ("maxOffsetsPerTrigger", "0"),
        ("minPartitions", "many"),
        ("minPartitions", "10001"),
        ("maxTriggerDelay", "soon"),
        ("failOnDataLoss", "maybe"),
        ("columns", "seq,colour"),
        ("columns", ","),
        ("mode", "LOUD"),
        ("sampleRecords", "1000000"),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_name(option: str, value: str) -> None:
    options = {"subscribe": "orders", option: value}
    if option in {"assign", "subscribePattern"}:
        del options["subscribe"]
    with pytest.raises(OptionError, match=rf"^option `{option}`"):
        SourceOptions.parse(options)


@pytest.mark.parametrize("options", [{}, {"subscribe": "a", "assign": '["b"]'}])
def test_topics_are_named_in_exactly_one_way(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="exactly one of"):
        SourceOptions.parse(options)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(OptionError, match="startingoffset`"):
        parse(startingOffset="earliest")


def test_a_schema_is_given_or_inferred() -> None:
    with pytest.raises(OptionError, match="inferSchema"):
        parse(schema="a INT", inferSchema="true")


def test_partitions_are_topics() -> None:
    kafka = SourceOptions.parse({"assign": '{"orders": [0, 2]}'})
    assert kafka.subscription.names == ("orders", "orders:p2")
    assert SourceOptions.parse({"assign": '["b", "a"]'}).subscription.names == ("b", "a")


def test_starts_are_words_seqs_or_times() -> None:
    assert parse(startingOffsets="earliest").start == Bound(whole=EARLIEST)
    assert parse(endingOffsets="Latest").end == Bound(whole=LATEST)
    assert parse(startingOffsets='{"orders": 5, "x": {"0": -2, "1": 9}}').start == Bound(
        seqs={"orders": 5, "x": EARLIEST, "x:p1": 9}
    )
    assert parse(startingTimestamp="1000", startingOffsets="latest").start == Bound(timestamp_ms=1000)
    assert parse(endingOffsetsByTimestamp='{"orders": 7}').end == Bound(timestamps_ms={"orders": 7})


def test_columns_can_be_left_out() -> None:
    assert parse().columns == ("topic", "seq", "ts", "node", "tag", "data", "meta")
    assert parse(includeTags="false", includeHeaders="false").columns == ("topic", "seq", "ts", "node", "data")
    assert parse(columns="data, seq").columns == ("data", "seq")
    assert parse(schema="a INT").columns[-1] == "_corrupt"
    assert parse(schema="a INT", columnNameOfCorruptRecord="oops").columns[-1] == "oops"
    assert "_corrupt" not in parse(schema="a INT", mode="failfast").columns


def test_times_have_units() -> None:
    assert parse(maxTriggerDelay="15m").trigger_delay_ms_max == 900_000
    assert parse(maxTriggerDelay="250 ms").trigger_delay_ms_max == 250


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        ("orders.*", "orders"),
        ("orders:?x", "orders"),
        ("a|b", ""),
        (".*", ""),
        ("ab{2}", "a"),
        ("ab+", "ab"),
        ("x", "x"),
    ],
)
def test_a_pattern_is_asked_for_by_what_its_names_start_with(pattern: str, prefix: str) -> None:
    assert Subscription(pattern=pattern).prefix == prefix


def test_a_pattern_matches_whole_names() -> None:
    assert Subscription(pattern="ord.*s").matches("orders")
    assert not Subscription(pattern="ord").matches("orders")

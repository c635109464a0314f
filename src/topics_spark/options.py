"""The options of the source: their defaults and bounds, and error messages about them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from topics_spark.errors import OptionError

URL_DEFAULT = "http://127.0.0.1:4000"
COLUMNS: Final = ("topic", "seq", "ts", "node", "tag", "data", "meta")
# A payload that does not fit the schema, unless the option says otherwise.
CORRUPT: Final = "_corrupt"
MODES: Final = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
# Kafka's numbers for the two ends of a topic, as in `startingOffsets`.
EARLIEST = -2
LATEST = -1
RECORDS_PER_PARTITION_DEFAULT = 100_000
PARTITIONS_MAX = 10_000
SAMPLE_RECORDS_DEFAULT = 1_000
SAMPLE_RECORDS_MAX = 100_000
TRIGGER_DELAY_MS_DEFAULT = 900_000
UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

# Options that Spark or its writer adds to ours.
FOREIGN: Final = frozenset({"checkpointlocation", "header", "name", "paths", "queryname"})
KNOWN: Final = frozenset(
    name.lower()
    for name in (
        "url",
        "key",
        "path",
        "coldPath",
        "subscribe",
        "subscribePattern",
        "assign",
        "startingOffsets",
        "endingOffsets",
        "startingTimestamp",
        "endingTimestamp",
        "startingOffsetsByTimestamp",
        "endingOffsetsByTimestamp",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "minPartitions",
        "maxRecordsPerPartition",
        "failOnDataLoss",
        "includeTags",
        "includeMeta",
        "includeHeaders",
        "node",
        "tagPrefix",
        "columns",
        "schema",
        "inferSchema",
        "sampleRecords",
        "schemaLocation",
        "mode",
        "columnNameOfCorruptRecord",
        "timeoutSeconds",
    )
)


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics to read: names, or a pattern that a whole name must match."""

    names: tuple[str, ...] = ()
    pattern: str | None = None

    def matches(self, name: str) -> bool:
        return name in self.names if self.pattern is None else re.fullmatch(self.pattern, name) is not None

    @property
    def prefix(self) -> str:
        """The common prefix of all matching names, as far as the pattern shows it."""
        if self.pattern is None or "|" in self.pattern:
            return ""
        literal = re.match(r"[A-Za-z0-9_:-]*", self.pattern)
        text = literal[0] if literal else ""
        # A quantifier applies to the character before it, which may therefore be missing.
        return text[:-1] if self.pattern[len(text) : len(text) + 1] in {"?", "*", "{"} else text


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of the range to read: the whole topic, or per topic a seq (the first to read or to exclude) or a time."""

    whole: int | None = None
    seqs: Mapping[str, int] = field(default_factory=dict[str, int])
    timestamp_ms: int | None = None
    timestamps_ms: Mapping[str, int] = field(default_factory=dict[str, int])

    def time_for(self, topic: str) -> int | None:
        return self.timestamp_ms if self.timestamp_ms is not None else self.timestamps_ms.get(topic)

    def seq_for(self, topic: str, default: int) -> int:
        return self.seqs.get(topic, default) if self.whole is None else self.whole


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The checked options of one `load()`. The key is kept out of all texts."""

    url: str | None
    key: str | None = field(repr=False)
    path: str | None
    cold_path: str | None
    subscription: Subscription
    start: Bound | None
    end: Bound | None
    offsets_per_trigger_max: int | None
    offsets_per_trigger_min: int
    trigger_delay_ms_max: int
    partitions_min: int
    records_per_partition_max: int
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    nodes: tuple[str, ...]
    tag_prefix: str | None
    schema: str | None
    infer_schema: bool
    sample_records: int
    schema_location: str | None
    mode: str
    corrupt_column: str
    timeout_s: float

    @property
    def parses(self) -> bool:
        return self.schema is not None or self.infer_schema

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        options = {name.lower(): value for name, value in given.items()}
        if unknown := sorted(set(options) - KNOWN - FOREIGN):
            raise OptionError(unknown[0], "is not an option of this source; docs/SPARK.md lists the options")
        path = options.get("path")
        url = options.get("url") or (None if path else os.environ.get("TOPICS_URL", URL_DEFAULT))
        corrupt = options.get("columnnameofcorruptrecord", CORRUPT)
        parses = "schema" in options or flag(options, "inferSchema", default=False)
        if "schema" in options and flag(options, "inferSchema", default=False):
            raise OptionError("inferSchema", "cannot be combined with `schema`: give one of them")
        return cls(
            url=url.rstrip("/") if url else None,
            key=options.get("key") or os.environ.get("TOPICS_API_KEY") or None,
            path=path,
            cold_path=options.get("coldpath"),
            subscription=subscription_of(options),
            start=bound_of(options, "starting"),
            end=bound_of(options, "ending"),
            offsets_per_trigger_max=optional_number(options, "maxOffsetsPerTrigger", 1),
            offsets_per_trigger_min=number(options, "minOffsetsPerTrigger", 0, 0),
            trigger_delay_ms_max=duration_ms(options, "maxTriggerDelay", TRIGGER_DELAY_MS_DEFAULT),
            partitions_min=number(options, "minPartitions", 1, 1, PARTITIONS_MAX),
            records_per_partition_max=number(options, "maxRecordsPerPartition", RECORDS_PER_PARTITION_DEFAULT, 1),
            fail_on_data_loss=flag(options, "failOnDataLoss", default=True),
            columns=columns_of(options, corrupt if parses else None),
            nodes=names_in(options, "node"),
            tag_prefix=options.get("tagprefix"),
            schema=options.get("schema"),
            infer_schema=flag(options, "inferSchema", default=False),
            sample_records=number(options, "sampleRecords", SAMPLE_RECORDS_DEFAULT, 1, SAMPLE_RECORDS_MAX),
            schema_location=options.get("schemalocation") or options.get("checkpointlocation"),
            mode=choice(options, "mode", MODES),
            corrupt_column=corrupt,
            timeout_s=float(number(options, "timeoutSeconds", 60, 1, 3_600)),
        )


def subscription_of(options: Mapping[str, str]) -> Subscription:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if name.lower() in options]
    if len(given) != 1:
        found = " and ".join(f"`{name}`" for name in given) or "none"
        raise OptionError("subscribe", f"give exactly one of `subscribe`, `subscribePattern` and `assign`, not {found}")
    match given[0]:
        case "subscribe":
            names = names_in(options, "subscribe")
            if not names:
                raise OptionError("subscribe", "names no topic; give one or more, separated by commas")
            return Subscription(names)
        case "subscribePattern":
            pattern = options["subscribepattern"]
            try:
                re.compile(pattern)
            except re.error as broken:
                raise OptionError("subscribePattern", f"is not a regular expression: {broken}") from None
            return Subscription(pattern=pattern)
        case _:
            return Subscription(assigned(decoded(options, "assign")))


def assigned(value: Any) -> tuple[str, ...]:
    """`["a", "b"]`, or as for Kafka `{"a": [0, 1]}`: partition k of a topic is the topic `a:pk`, the first one `a`."""
    match value:
        case list():
            names = [name for name in cast("list[Any]", value) if isinstance(name, str)]
            if names and len(names) == len(cast("list[Any]", value)):
                return tuple(dict.fromkeys(names))
        case dict():
            partitions = cast("dict[str, Any]", value)
            if partitions and all(is_partitions(numbers) for numbers in partitions.values()):
                return tuple(dict.fromkeys(partition_topic(n, k) for n, ks in partitions.items() for k in ks))
        case _:
            pass
    raise OptionError("assign", 'must be a JSON list of names, or {"topic": [partition, …]}')


def is_partitions(value: Any) -> bool:
    return isinstance(value, list) and all(is_number(k) and k >= 0 for k in cast("list[Any]", value))


def partition_topic(name: str, partition: int) -> str:
    return name if partition == 0 else f"{name}:p{partition}"


def bound_of(options: Mapping[str, str], side: str) -> Bound | None:
    """`startingTimestamp` takes precedence over `startingOffsetsByTimestamp`, and that over `startingOffsets`."""
    timestamp, by_timestamp, offsets = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
    if timestamp.lower() in options:
        return Bound(timestamp_ms=number(options, timestamp, 0, 0))
    if by_timestamp.lower() in options:
        times = per_topic(options, by_timestamp)
        if min(times.values(), default=0) < 0:
            raise OptionError(by_timestamp, "must be milliseconds since 1970, none below 0")
        return Bound(timestamps_ms=times)
    if offsets.lower() not in options:
        return None
    match options[offsets.lower()].strip().lower():
        case "earliest":
            return Bound(whole=EARLIEST)
        case "latest":
            return Bound(whole=LATEST)
        case _:
            seqs = per_topic(options, offsets)
            if min(seqs.values(), default=0) < EARLIEST:
                raise OptionError(offsets, "must have seqs from 0, -2 for earliest or -1 for latest")
            return Bound(seqs=seqs)


def per_topic(options: Mapping[str, str], name: str) -> dict[str, int]:
    """`{"a": 5}`, or as for Kafka `{"a": {"0": 5}}`."""
    value = decoded(options, name)
    found: dict[str, int] = {}
    if isinstance(value, dict):
        for topic, at in cast("dict[str, Any]", value).items():
            if is_number(at):
                found[topic] = at
            elif isinstance(at, dict):
                for partition, seq in cast("dict[str, Any]", at).items():
                    if partition.isdigit() and is_number(seq):
                        found[partition_topic(topic, int(partition))] = seq
    if not found:
        raise OptionError(name, 'must be "earliest", "latest" or JSON with a number per topic, like {"orders": 42}')
    return found


def columns_of(options: Mapping[str, str], corrupt: str | None) -> tuple[str, ...]:
    permissive = choice(options, "mode", MODES) == "PERMISSIVE"
    possible = (*COLUMNS, corrupt) if corrupt and permissive else COLUMNS
    if "columns" in options:
        wanted = names_in(options, "columns")
        if not wanted or not set(wanted) <= set(possible):
            raise OptionError("columns", f"must be some of {', '.join(possible)}, separated by commas")
        return wanted
    left_out: set[str] = set()
    if not flag(options, "includeTags", default=True):
        left_out.add("tag")
    if not flag(options, "includeMeta" if "includemeta" in options else "includeHeaders", default=True):
        left_out.add("meta")
    return tuple(name for name in possible if name not in left_out)


def names_in(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in options.get(name.lower(), "").split(",") if part.strip()))


def decoded(options: Mapping[str, str], name: str) -> Any:
    try:
        return json.loads(options[name.lower()])
    except ValueError:
        raise OptionError(name, "is not valid JSON") from None


def is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def optional_number(options: Mapping[str, str], name: str, least: int) -> int | None:
    return number(options, name, least, least) if name.lower() in options else None


def number(options: Mapping[str, str], name: str, default: int, least: int, most: int = 2**62) -> int:
    text = options.get(name.lower())
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise OptionError(name, f"must be a whole number from {least} to {most}, not {text!r}")
    return value


def duration_ms(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name.lower())
    if text is None:
        return default
    found = re.fullmatch(r"(\d+)\s*([a-z]+)", text.strip().lower())
    if found is None or found[2] not in UNITS_MS:
        raise OptionError(name, f"must be a time like 500ms, 30s, 15m or 1h, not {text!r}")
    return int(found[1]) * UNITS_MS[found[2]]


def flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in {"true", "false"}:
        raise OptionError(name, f"must be true or false, not {text!r}")
    return text.strip().lower() == "true"


def choice(options: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = options.get(name.lower(), allowed[0]).strip().upper()
    if value not in allowed:
        raise OptionError(name, f"must be one of {', '.join(allowed)}, not {value!r}")
    return value

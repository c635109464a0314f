"""All settings as one table, and the sources of their values: flags, environment, a TOML file, the default.

The dataclass below is the table. Flags, variables, the keys of the file, `topics config show` and docs/SETTINGS.md are
made from it, so a new setting is one new line here:

    name                 max_body_bytes              the unit is part of the name: _bytes, _ms, otherwise a count
    environment          TOPICS_MAX_BODY_BYTES       `TOPICS_` and the name in capitals
    flag                 --max-body-bytes            none for secrets
    key in the file      max_body_bytes
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from topics.model.setting_types import ENVIRONMENT_PREFIX, GIB, KIB, MIB, TIB, Setting, WrongSetting, setting, table_of

DAY_MS = 86_400_000
COUNT_MAX = 1_000_000_000
FLAGS, ENVIRONMENT, FILE, DEFAULT = "flag", "environment", "file", "default"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of engine and server. `Settings()` has all defaults; a value out of bounds is refused."""

    host: str = setting("127.0.0.1", "Address to listen on, as `host` or `host:port`.", kind="address")
    port: int = setting(4000, "Port to listen on.", at_most=65_535, zero_means="any free port")
    data_dir: str = setting("./data", "Directory of all data; created if it does not exist.")

    tls_cert: str | None = setting(
        None, "File with the certificate and its chain in PEM: the port then serves HTTPS. SIGHUP reads it again."
    )
    tls_key: str | None = setting(None, "File with the private key of `tls_cert` in PEM, not encrypted.")
    tls_client_ca: str | None = setting(
        None, "File with certificates in PEM; clients must then show a certificate that one of them has signed."
    )

    api_keys: tuple[str, ...] = setting(
        (), "Keys as `key`, `key:scopes`, `key:scopes:prefixes`. None: no authentication, loopback only.", secret=True
    )
    allow_insecure_no_auth: bool = setting(False, "Serve on addresses other than loopback without any key.")
    probe_auth: bool = setting(False, "Require a key for health and readiness as well.")
    allowed_hosts: tuple[str, ...] = setting((), "`Host` names accepted besides loopback names if there are no keys.")

    webhooks_allow: tuple[str, ...] = setting(
        (),
        "Hosts, addresses or networks that webhooks may be sent to although they are not public, like `10.1.0.0/16`.",
    )

    cors_origins: tuple[str, ...] = setting(
        (),
        "Origins whose web pages may use the API, like `https://app.example.org`. None: only the server's own origin.",
    )

    console: str = setting(
        "full",
        "The console at `/console/`; `read`: it offers no changes, `off`: it is not served.",
        kind="choice",
        choices=("off", "read", "full"),
    )
    base_path: str | None = setting(
        None, "Path that a proxy serves the server at, like `/topics`; the proxy may take it off or not."
    )

    max_batch_records: int = setting(10_000, "Records in one append.", at_least=1, at_most=1_000_000)
    max_record_bytes: int = setting(1 * MIB, "`data` and `meta` of one record.", at_least=1, at_most=GIB)
    max_body_bytes: int = setting(64 * MIB, "Body of one request, decompressed.", at_least=1, at_most=GIB)
    max_meta_bytes: int = setting(16 * KIB, "`meta` of one record.", at_least=2, at_most=16 * MIB)
    max_tag_bytes: int = setting(256, "`tag` of one record.", at_least=1, at_most=64 * KIB)
    max_node_bytes: int = setting(128, "`node` of one record.", at_least=1, at_most=64 * KIB)
    max_limit: int = setting(1_000, "Records in one reply; a larger `limit` is clamped.", at_least=1, at_most=100_000)
    max_watch_topics: int = setting(256, "Topics in one watch session.", at_least=1, at_most=100_000)
    max_claim: int = setting(1_000, "Jobs in one claim, ack, nack or extend.", at_least=1, at_most=100_000)

    max_topics: int = setting(100_000, "Existing topics.", at_most=COUNT_MAX, zero_means="unlimited")
    max_routers: int = setting(10_000, "Existing routers.", at_most=COUNT_MAX, zero_means="unlimited")
    max_schedules: int = setting(100_000, "Existing schedules.", at_most=COUNT_MAX, zero_means="unlimited")
    max_webhooks: int = setting(1_000, "Existing webhooks.", at_most=COUNT_MAX, zero_means="unlimited")
    max_watch_sessions: int = setting(10_000, "Existing watch sessions.", at_most=COUNT_MAX, zero_means="unlimited")
    max_sse_connections: int = setting(
        10_000, "Open streams and WebSockets.", at_most=COUNT_MAX, zero_means="unlimited"
    )
    max_sse_connections_per_key: int = setting(
        1_000, "Open streams and WebSockets of one key.", at_most=COUNT_MAX, zero_means="unlimited"
    )
    max_connections: int = setting(
        20_000,
        "Open connections; fewer if the limit of open files is lower, as the log needs some.",
        at_least=1,
        at_most=1_000_000,
    )
    max_inflight_per_key: int = setting(
        1_000, "Requests of one key in flight.", at_most=COUNT_MAX, zero_means="unlimited"
    )
    max_total_bytes: int = setting(
        0, "Bytes of all retained records.", at_most=1024 * 1024 * TIB, zero_means="unlimited"
    )

    max_txn_apps: int = setting(10_000, "Apps with transactions.", at_least=1, at_most=COUNT_MAX)
    max_stages: int = setting(10_000, "Stages that are neither committed nor aborted.", at_least=1, at_most=COUNT_MAX)
    max_staged_bytes: int = setting(4 * GIB, "Bytes of all stages.", at_least=1, at_most=1024 * TIB)
    max_staged_bytes_per_app: int = setting(2 * GIB, "Bytes of the stages of one app.", at_least=1, at_most=1024 * TIB)
    stage_ttl_ms: int = setting(
        3_600_000, "Time after which an uncommitted stage is dropped.", at_least=1, at_most=365 * DAY_MS
    )

    session_ttl_ms: int = setting(
        300_000, "Time for which a watch session without a stream is kept.", at_least=1, at_most=DAY_MS
    )
    buffer_grace_ms: int = setting(
        5_000, "Time for which a live reader may stall before a gap counts as its own.", at_least=1, at_most=DAY_MS
    )
    slow_consumer_timeout_ms: int = setting(
        30_000, "Time for which a live reader may stall before it is disconnected.", at_least=1, at_most=DAY_MS
    )

    segment_max_events: int = setting(10_000, "Records after which a segment is sealed.", at_least=1, at_most=COUNT_MAX)
    segment_max_bytes: int = setting(64 * MIB, "Bytes after which a segment is sealed.", at_least=1, at_most=GIB)
    segment_max_age_ms: int = setting(
        3_600_000, "Age after which a segment is sealed.", at_least=1, at_most=365 * DAY_MS
    )
    hot_retain_segments: int = setting(
        4, "Sealed segments of a topic that stay out of the cold directory.", at_most=COUNT_MAX
    )
    hot_retain_bytes: int = setting(128 * MIB, "Payload bytes kept in memory, over all topics.", at_most=1024 * TIB)
    cold_dir: str | None = setting(
        None, "Directory that older segments move to; unset: they stay in the data directory."
    )

    wal_file_bytes: int = setting(64 * MIB, "Size of one log file.", at_least=4 * KIB, at_most=2 * GIB)
    checkpoint_bytes: int = setting(
        64 * MIB, "Log bytes after which a checkpoint starts.", at_least=1, at_most=64 * GIB
    )
    checkpoint_ms: int = setting(60_000, "Time after which a checkpoint starts.", at_least=1, at_most=DAY_MS)

    bucket: str | None = setting(
        None,
        "Where the log is copied to: `s3://bucket/prefix`, `gs://…`, `az://…` or `file:///a/shared/directory`. Unset: "
        "nowhere. Credentials are no settings: docs/BUCKET.md.",
        kind="text",
    )
    bucket_piece_ms: int = setting(
        50,
        "Time after which a piece of the log is sent to the bucket; a tenth of it while `replicated` writes wait.",
        at_least=1,
        at_most=60_000,
    )
    bucket_piece_bytes: int = setting(
        1 * MIB, "Bytes after which a piece of the log is sent to the bucket.", at_least=1, at_most=64 * MIB
    )
    bucket_backlog_bytes: int = setting(
        1 * GIB,
        "Bytes of the log that wait on disk while the bucket is away; with more, the copy gets a gap.",
        at_least=1 * MIB,
        at_most=1024 * TIB,
    )
    bucket_keep_ms: int = setting(
        7 * DAY_MS, "How far back the bucket can be restored to.", at_least=1_000, at_most=3650 * DAY_MS
    )
    bucket_lease_ms: int = setting(
        10_000,
        "Time after which a server that no longer reports to the bucket may be replaced.",
        at_least=1_000,
        at_most=DAY_MS,
    )

    local_bytes: int = setting(
        0,
        "Bytes of packs that stay on this disk; older ones are only in the bucket, and read from there. Needs "
        "`bucket`, excludes `cold_dir`.",
        at_most=1024 * TIB,
        zero_means="all of them stay",
    )
    bucket_cache_bytes: int = setting(
        64 * MIB,
        "Bytes of packs read from the bucket that stay in memory.",
        at_least=1 * MIB,
        at_most=1024 * TIB,
    )
    bucket_takeover: str = setting(
        "auto",
        "Who may take over when the primary no longer renews its lease; `auto`: a standby by itself, `manual`: a "
        "standby that is promoted, `off`: there is no standby, and the lease is renewed rarely.",
        kind="choice",
        choices=("auto", "manual", "off"),
    )
    standby: bool = setting(False, "Follow the log in the bucket, serve reads, and take over when the primary is gone.")
    advertise_url: str | None = setting(
        None,
        "Address of this server for others, like `https://a.example.org:4000`; unset: made from `host` and `port`.",
        kind="text",
    )

    visibility_timeout_secs: int = setting(
        60,
        "Seconds that a consumer of a group has to ack records it has received.",
        at_least=1,
        at_most=86_400,
        also=("KALAMDB_TOPIC_VISIBILITY_TIMEOUT_SECS", "KALAMDB_VISIBILITY_TIMEOUT_SECS"),
        section="topics",
    )
    jwt_secret: str | None = setting(
        None,
        "Secret that signs tokens, at least 32 characters. Unset: a loopback server without keys and users needs no "
        "token for consumer groups, any other refuses them.",
        kind="text",
        secret=True,
        also=("KALAMDB_JWT_SECRET",),
    )
    jwt_trusted_issuers: tuple[str, ...] = setting(
        (), "Issuers whose tokens are accepted besides our own, `kalamdb`.", also=("KALAMDB_JWT_TRUSTED_ISSUERS",)
    )
    jwt_expiry_hours: int = setting(
        24, "Hours for which an access token is valid.", at_least=1, at_most=8_760, also=("KALAMDB_JWT_EXPIRY_HOURS",)
    )
    users: tuple[str, ...] = setting(
        (),
        "Users that may log in, as `name:role:hash` or `name:role:hash:prefixes`; `topics hash` makes a hash.",
        secret=True,
    )
    trusted_proxies: tuple[str, ...] = setting(
        (),
        "Addresses or networks of proxies whose `X-Forwarded-For` is used when failed logins are limited by address.",
    )

    log_format: str = setting("text", "Format of the log.", kind="choice", choices=("text", "json"))
    log_level: str = setting(
        "info", "Lowest severity that is logged.", kind="choice", choices=("debug", "info", "warning", "error")
    )
    access_log: bool = setting(False, "Log a line for each request: what was asked, by which key, status, bytes, time.")
    access_log_sample: int = setting(
        1, "Log one request of this many; statuses from 500 on are always logged.", at_least=1, at_most=COUNT_MAX
    )
    slow_request_ms: int = setting(
        0,
        "Log requests that take longer, apart from the wait that they ask for, with or without `access_log`.",
        at_most=DAY_MS,
        zero_means="none",
    )
    tracing: bool = setting(
        False, "Send a span for each request by OpenTelemetry, as `OTEL_…` variables say; needs the extra `tracing`."
    )

    def __post_init__(self) -> None:
        for row in TABLE:
            value = getattr(self, row.name)
            if not row.accepts(value):
                raise row.wrong(value, "argument")
        if self.standby:
            _check_standby(self)

    def forget_secrets(self) -> None:
        """Called once the keys are hashed. They are overwritten in place, because callers hold this very object."""
        for row in TABLE:
            if row.secret:
                object.__setattr__(self, row.name, row.default)


def _check_standby(settings: Settings) -> None:
    if settings.bucket is None:
        raise WrongSetting(
            "TOPICS_STANDBY is set without TOPICS_BUCKET: a standby follows the log in the bucket of a "
            "primary; set TOPICS_BUCKET to that bucket",
            setting="standby",
        )
    if settings.bucket_takeover == "off":
        raise WrongSetting(
            "TOPICS_STANDBY is set, but TOPICS_BUCKET_TAKEOVER is off, which is for a server without a standby; use "
            "auto or manual",
            setting="standby",
        )


GROUPS: Final[Mapping[str, str]] = {
    "host": "Listening",
    "tls_cert": "TLS",
    "api_keys": "Access",
    "console": "Console",
    "max_batch_records": "One request",
    "max_topics": "Caps",
    "max_txn_apps": "Transactions",
    "session_ttl_ms": "Live delivery",
    "segment_max_events": "Segments",
    "wal_file_bytes": "Log and checkpoints",
    "bucket": "Bucket",
    "visibility_timeout_secs": "Consumer groups",
    "log_format": "Logging",
}
TABLE: Final = table_of(Settings, GROUPS)


def load_settings(
    flags: Mapping[str, object], environ: Mapping[str, str], toml_path: str | None = None
) -> tuple[Settings, dict[str, str]]:
    """Settings and the source of each value. Flags take precedence over environment, file and defaults.

    Flags are named as in the table; one that is None was not given, and an empty variable counts as absent.
    """
    by_file = {} if toml_path is None else _read_file(toml_path)
    given: dict[str, tuple[str, object]] = {}
    for row in TABLE:
        if flags.get(row.name) is not None:
            given[row.name] = f"{FLAGS} {row.flag}", flags[row.name]
        elif variable := next((name for name in (row.variable, *row.also) if environ.get(name)), None):
            given[row.name] = f"{ENVIRONMENT} {variable}", environ[variable]
        elif row.name in by_file:
            given[row.name] = f"{FILE} {toml_path}", by_file[row.name]
    _split_host(given)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for row in TABLE:
        origin, value = given.get(row.name, (DEFAULT, None))
        origins[row.name] = origin
        if row.name in given:
            values[row.name] = row.parse(value, origin)
    return Settings(**values), origins


def unknown_variables(environ: Iterable[str], besides: str) -> list[str]:
    """Warnings about variables with our prefix that set nothing; they may belong to another program."""
    known = [besides, *(row.variable for row in TABLE)]
    strangers = [name for name in environ if name.startswith(ENVIRONMENT_PREFIX) and name not in known]
    return [f"{name} sets nothing{_hint(name, known, ENVIRONMENT_PREFIX)}" for name in sorted(strangers)]


def _hint(name: str, names: Sequence[str], prefix: str = "") -> str:
    """A suggestion, if a name is similar; the common prefix is not compared."""
    near = difflib.get_close_matches(name.removeprefix(prefix), [known.removeprefix(prefix) for known in names], n=1)
    return f", did you mean {prefix}{near[0]}?" if near else ""


def find(name: str) -> Setting:
    """The row of the table with this name."""
    return next(row for row in TABLE if row.name == name)


def _read_file(toml_path: str) -> dict[str, object]:
    try:
        with open(toml_path, "rb") as file:
            content: dict[str, object] = tomllib.load(file)
    except OSError as error:
        raise WrongSetting(f"cannot read the settings file {toml_path}: {error.strerror}", file=toml_path) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WrongSetting(f"the settings file {toml_path} is not TOML: {error}", file=toml_path) from error
    _lift_sections(content, toml_path)
    names = [row.name for row in TABLE]
    for key in content:
        if key not in names:
            message = f"the settings file {toml_path} has an unknown key {key!r}{_hint(key, names)}"
            raise WrongSetting(message, file=toml_path)
    return content


def _lift_sections(content: dict[str, object], toml_path: str) -> None:
    """Move keys out of tables that may hold them, so that the file of an existing server can be used unchanged."""
    for row in TABLE:
        table = content.get(row.section) if row.section else None
        if isinstance(table, dict) and row.name in table:
            content.setdefault(row.name, cast("dict[str, object]", table).pop(row.name))
    for section in {row.section for row in TABLE if row.section}:
        table = cast("object", content.get(section))
        if isinstance(table, dict):
            for key in cast("dict[str, object]", table):
                raise WrongSetting(
                    f"the settings file {toml_path} has an unknown key {key!r} in [{section}]", file=toml_path
                )
            del content[section]


def _split_host(given: dict[str, tuple[str, object]]) -> None:
    """Split `host:port`. A port given separately wins, unless the host comes from a stronger source."""
    origin, host = given.get("host", (DEFAULT, None))
    if not isinstance(host, str):
        return
    host = host.strip()
    name, colon, port = host.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        name, port = host, ""  # [::1]
    elif not colon or (":" in name and not name.startswith("[")):
        name, port = host, ""  # localhost, or a bare ::1
    elif not port or not name:
        raise find("host").wrong(host, origin)
    given["host"] = origin, name.removeprefix("[").removesuffix("]")
    if port and _strength(origin) > _strength(given.get("port", (DEFAULT, None))[0]):
        given["port"] = origin, port


def _strength(origin: str) -> int:
    return (DEFAULT, FILE, ENVIRONMENT, FLAGS).index(origin.partition(" ")[0])

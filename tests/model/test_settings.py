"""Settings: every documented variable exists, the strongest source wins, and a wrong value is one clear sentence."""

from pathlib import Path

import pytest

from topics.model.setting_types import GIB, MIB, WrongSetting
from topics.model.settings import TABLE, Settings, find, load_settings

DOCUMENTED_DEFAULTS = {
    "TOPICS_ALLOWED_HOSTS": (),
    "TOPICS_ALLOW_INSECURE_NO_AUTH": False,
    "TOPICS_API_KEYS": (),
    "TOPICS_COLD_DIR": None,
    "TOPICS_DATA_DIR": "./data",
    "TOPICS_HOST": "127.0.0.1",
    "TOPICS_HOT_RETAIN_SEGMENTS": 4,
    "TOPICS_MAX_BATCH_RECORDS": 10_000,
    "TOPICS_MAX_BODY_BYTES": 64 * MIB,
    "TOPICS_MAX_CLAIM": 1_000,
    "TOPICS_MAX_INFLIGHT_PER_KEY": 1_000,
    "TOPICS_MAX_LIMIT": 1_000,
    "TOPICS_MAX_META_BYTES": 16_384,
    "TOPICS_MAX_NODE_BYTES": 128,
    "TOPICS_MAX_RECORD_BYTES": MIB,
    "TOPICS_MAX_ROUTERS": 10_000,
    "TOPICS_MAX_SSE_CONNECTIONS": 10_000,
    "TOPICS_MAX_SSE_CONNECTIONS_PER_KEY": 1_000,
    "TOPICS_MAX_TAG_BYTES": 256,
    "TOPICS_MAX_TOPICS": 100_000,
    "TOPICS_MAX_TOTAL_BYTES": 0,
    "TOPICS_MAX_WATCH_SESSIONS": 10_000,
    "TOPICS_MAX_WATCH_TOPICS": 256,
    "TOPICS_PORT": 4000,
    "TOPICS_PROBE_AUTH": False,
    "TOPICS_SEGMENT_MAX_AGE_MS": 3_600_000,
    "TOPICS_SEGMENT_MAX_BYTES": 64 * MIB,
    "TOPICS_SEGMENT_MAX_EVENTS": 10_000,
}


def written(directory: Path, text: str) -> str:
    path = directory / "topics.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("variable", DOCUMENTED_DEFAULTS)
def test_a_documented_variable_has_its_documented_default(variable: str) -> None:
    row = find(variable.removeprefix("TOPICS_").lower())
    assert row.variable == variable
    assert row.default == DOCUMENTED_DEFAULTS[variable]
    assert getattr(Settings(), row.name) == row.default


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_every_row_accepts_its_default_and_explains_itself(row) -> None:
    assert row.accepts(row.default)
    assert row.help.endswith(".")
    assert row.group
    assert row.at_most or row.kind not in ("count", "bytes", "ms")


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    path = written(tmp_path, "max_claim = 1\nmax_limit = 1\nmax_topics = 1\n")
    environ = {"TOPICS_MAX_CLAIM": "2", "TOPICS_MAX_LIMIT": "2"}
    settings, origins = load_settings({"max_claim": "3", "max_limit": None}, environ, path)
    assert (settings.max_claim, settings.max_limit, settings.max_topics, settings.max_routers) == (3, 2, 1, 10_000)
    assert origins["max_claim"] == "flag --max-claim"
    assert origins["max_limit"] == "environment TOPICS_MAX_LIMIT"
    assert origins["max_topics"] == f"file {path}"
    assert origins["max_routers"] == "default"


def test_nothing_given_is_all_defaults() -> None:
    settings, origins = load_settings({}, {})
    assert settings == Settings()
    assert set(origins.values()) == {"default"}
    assert set(origins) == {row.name for row in TABLE}


def test_an_empty_variable_counts_as_absent() -> None:
    assert load_settings({}, {"TOPICS_PORT": "", "TOPICS_API_KEYS": ""})[0] == Settings()


@pytest.mark.parametrize(
    ("given", "host", "port"),
    [
        ("0.0.0.0", "0.0.0.0", 4000),
        ("0.0.0.0:5000", "0.0.0.0", 5000),
        ("localhost:0", "localhost", 0),
        ("::1", "::1", 4000),
        ("[::1]", "::1", 4000),
        ("[::1]:5000", "::1", 5000),
    ],
)
def test_a_host_may_carry_a_port(given: str, host: str, port: int) -> None:
    settings, _ = load_settings({}, {"TOPICS_HOST": given})
    assert (settings.host, settings.port) == (host, port)


def test_a_port_of_its_own_wins_over_the_one_in_the_host_of_the_same_source() -> None:
    settings, origins = load_settings({}, {"TOPICS_HOST": "h:5000", "TOPICS_PORT": "6000"})
    assert (settings.host, settings.port, origins["port"]) == ("h", 6000, "environment TOPICS_PORT")


def test_a_port_in_the_host_wins_over_a_weaker_source() -> None:
    settings, origins = load_settings({"host": "h:5000"}, {"TOPICS_PORT": "6000"})
    assert (settings.port, origins["port"]) == (5000, "flag --host")


@pytest.mark.parametrize("given", ["h:", ":5000", "h:port", "h:70000", "[::1]x:1:"])
def test_a_host_with_a_broken_port_is_refused(given: str) -> None:
    with pytest.raises(WrongSetting):
        load_settings({}, {"TOPICS_HOST": given})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_body_bytes", "1024", 1024),
        ("max_body_bytes", "8MiB", 8 * MIB),
        ("max_body_bytes", " 8 mib ", 8 * MIB),
        ("max_total_bytes", "2 GiB", 2 * GIB),
        ("checkpoint_ms", "90s", 90_000),
        ("segment_max_age_ms", "2h", 7_200_000),
        ("probe_auth", "1", True),
        ("probe_auth", "False", False),
        ("log_format", "JSON", "json"),
        ("allowed_hosts", "a.example, b.example,", ("a.example", "b.example")),
        ("api_keys", "s3cret:rw,0ther", ("s3cret:rw", "0ther")),
        ("cold_dir", "/mnt/cold", "/mnt/cold"),
    ],
)
def test_a_text_becomes_a_typed_value(name: str, text: str, value: object) -> None:
    settings, _ = load_settings({}, {find(name).variable: text})
    assert getattr(settings, name) == value


@pytest.mark.parametrize(
    ("variable", "text", "bounds"),
    [
        ("TOPICS_PORT", "70000", "from 0 to 65535"),
        ("TOPICS_PORT", "-1", "from 0 to 65535"),
        ("TOPICS_PORT", "4000.0", "from 0 to 65535"),
        ("TOPICS_PORT", "4k", "from 0 to 65535"),
        ("TOPICS_PORT", "٤", "from 0 to 65535"),
        ("TOPICS_MAX_LIMIT", "0", "from 1 to 100000"),
        ("TOPICS_MAX_BODY_BYTES", "64 MB", "from 1 to 1 GiB"),
        ("TOPICS_PROBE_AUTH", "maybe", "true or false"),
        ("TOPICS_LOG_LEVEL", "loud", "debug, info, warning, error"),
        ("TOPICS_DATA_DIR", "a\x00b", "a path"),
    ],
)
def test_a_wrong_value_is_one_line_with_variable_value_and_bounds(variable: str, text: str, bounds: str) -> None:
    with pytest.raises(WrongSetting) as caught:
        load_settings({}, {variable: text})
    message = caught.value.message
    assert message.startswith(f"{variable} is {text!r}, ")
    assert bounds in message
    assert "\n" not in message


@pytest.mark.parametrize("text", ["s3cret,,0ther", ",s3cret", "s3cret, ,0ther", "s3cret,,", ",", " "])
def test_a_list_with_an_empty_entry_is_refused_without_showing_secrets(text: str) -> None:
    with pytest.raises(WrongSetting) as caught:
        load_settings({}, {"TOPICS_API_KEYS": text})
    message = caught.value.message
    assert message.startswith("TOPICS_API_KEYS is ")
    assert "non-empty texts, separated by commas" in message
    assert "s3cret" not in message


def test_a_wrong_flag_is_named_as_the_flag(tmp_path: Path) -> None:
    with pytest.raises(WrongSetting, match=r"TOPICS_PORT is 'x' \(by flag --port\)"):
        load_settings({"port": "x"}, {})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("port = true", "TOPICS_PORT is True"),
        ("port = 4000.0", "TOPICS_PORT is 4000.0"),
        ("data_dir = 5", "TOPICS_DATA_DIR is 5"),
        ("allowed_hosts = [1]", "TOPICS_ALLOWED_HOSTS is"),
        ("allowed_hosts = ['']", "TOPICS_ALLOWED_HOSTS is"),
        ("max_bodi_bytes = 5", "unknown key 'max_bodi_bytes', did you mean max_body_bytes?"),
        ("[server]\nport = 1", "unknown key 'server'"),
        ("port =", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name(tmp_path: Path, text: str, complaint: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(WrongSetting) as caught:
        load_settings({}, {}, path)
    assert complaint in caught.value.message
    assert path in caught.value.message


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongSetting, match=r"absent\.toml: No such file"):
        load_settings({}, {}, str(tmp_path / "absent.toml"))


def test_a_file_may_hold_sizes_as_text_and_lists(tmp_path: Path) -> None:
    path = written(tmp_path, 'max_body_bytes = "8 MiB"\nallowed_hosts = ["a", "b"]\nprobe_auth = true\n')
    settings, _ = load_settings({}, {}, path)
    assert (settings.max_body_bytes, settings.allowed_hosts, settings.probe_auth) == (8 * MIB, ("a", "b"), True)


def test_keys_never_show_in_errors_or_representations(tmp_path: Path) -> None:
    settings, _ = load_settings({}, {"TOPICS_API_KEYS": "s3cret:rw,0ther"})
    assert settings.api_keys == ("s3cret:rw", "0ther")
    assert "s3cret" not in repr(settings)
    with pytest.raises(WrongSetting) as caught:
        load_settings({}, {}, written(tmp_path, "api_keys = ['s3cret', 5]"))
    assert "s3cret" not in str(caught.value)


def test_keys_of_nothing_but_commas_are_refused_rather_than_read_as_no_keys() -> None:
    with pytest.raises(WrongSetting, match="TOPICS_API_KEYS"):
        load_settings({}, {"TOPICS_API_KEYS": " , "})


def test_forgotten_secrets_are_gone_from_every_reference() -> None:
    settings = Settings(api_keys=("s3cret",))
    held_elsewhere = settings
    settings.forget_secrets()
    assert held_elsewhere.api_keys == ()


def test_a_program_that_embeds_the_engine_gets_the_same_checks() -> None:
    assert Settings(segment_max_events=3).segment_max_events == 3
    with pytest.raises(WrongSetting, match=r"TOPICS_SEGMENT_MAX_EVENTS is 0 \(by argument\)"):
        Settings(segment_max_events=0)

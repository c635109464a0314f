"""One setting: its kind, bounds and help, and how a text, a flag or a TOML value becomes a checked value."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast

from topics.model.errors import TopicsError

ENVIRONMENT_PREFIX = "TOPICS_"
KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40

Kind = Literal["count", "bytes", "ms", "switch", "address", "path", "text", "list", "choice"]
Value = int | bool | str | tuple[str, ...] | None
T = TypeVar("T")

_NUMBER = re.compile(r"([0-9]+)\s*([A-Za-z]*)", re.ASCII)
_UNITS: Final[Mapping[Kind, Mapping[str, int]]] = {
    "count": {"": 1},
    "bytes": {"": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB},
    "ms": {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000},
}
_SWITCH: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


class WrongSetting(TopicsError):
    """A setting that cannot be used; the message names it, its value (never a secret's) and what is allowed."""

    code = "wrong_setting"


class Setting(NamedTuple):
    """One row of the table of settings."""

    name: str
    kind: Kind
    default: Value
    help: str
    group: str
    at_least: int
    at_most: int
    zero_means: str
    choices: tuple[str, ...]
    secret: bool
    # other environment variables that are read as well, and the table of a file that may hold the key
    also: tuple[str, ...]
    section: str

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def flag(self) -> str | None:
        """Secrets have no flag: every user of a machine can read the arguments of its processes."""
        return None if self.secret else "--" + self.name.replace("_", "-")

    @property
    def allowed(self) -> str:
        """The allowed values, as the end of a sentence that starts with "must be"."""
        match self.kind:
            case "count" | "bytes" | "ms":
                low, high = (show_number(self.kind, bound) for bound in (self.at_least, self.at_most))
                unit = {"count": "a whole number", "bytes": "a size", "ms": "a time in ms"}[self.kind]
                zero = f" (0: {self.zero_means})" if self.zero_means else ""
                return f"{unit} from {low} to {high}{zero}"
            case "switch":
                return "true or false"
            case "choice":
                return "one of " + ", ".join(self.choices)
            case "list":
                return "a list of non-empty texts, separated by commas"
            case "address":
                return "a host or host:port"
            case "path":
                return "a path"
            case "text":
                return "a printable text"

    def parse(self, given: object, origin: str) -> Value:
        """Convert the value of a flag, a variable or a file; raises WrongSetting."""
        value = self._read(given)
        if value is None or not self.accepts(value):
            raise self.wrong(given, origin)
        return value

    def accepts(self, value: object) -> bool:
        """Check that a typed value is of this kind and within bounds; the default always is."""
        match self.kind:
            case "count" | "bytes" | "ms":
                return type(value) is int and self.at_least <= value <= self.at_most
            case "switch":
                return isinstance(value, bool)
            case "choice":
                return value in self.choices
            case "list":
                return isinstance(value, tuple) and all(map(_is_text, cast("tuple[object, ...]", value)))
            case "address" | "path" | "text":
                return _is_text(value) or (value is None and self.default is None)

    def wrong(self, given: object, origin: str) -> WrongSetting:
        shown = "a hidden value" if self.secret else repr(given)
        source = "" if origin.endswith(self.variable) else f" (by {origin})"
        hint = service_link_hint(given)
        message = f"{self.variable} is {shown}{source}{hint}, but must be {self.allowed}"
        return WrongSetting(message, setting=self.name, origin=origin)

    def _read(self, given: object) -> Value:
        """The value converted to this kind, None if that is impossible; a TOML value may be typed or a text."""
        match self.kind:
            case "count" | "bytes" | "ms":
                return _read_number(self.kind, given)
            case "switch":
                return given if isinstance(given, bool) else _SWITCH.get(str(given).strip().lower())
            case "list":
                return _read_list(given)
            case "choice":
                return given.strip().lower() if isinstance(given, str) else None
            case "address" | "path" | "text":
                return given.strip() if isinstance(given, str) else None


def setting(
    default: T,
    help: str,
    *,
    kind: Kind | None = None,
    at_least: int = 0,
    at_most: int = 0,
    zero_means: str = "",
    choices: tuple[str, ...] = (),
    secret: bool = False,
    also: tuple[str, ...] = (),
    section: str = "",
) -> T:
    """Declare one field of a dataclass of settings; typed as its default, like `dataclasses.field`."""
    row = {"help": help, "kind": kind, "at_least": at_least, "at_most": at_most, "zero_means": zero_means}
    metadata = {**row, "choices": choices, "secret": secret, "also": also, "section": section}
    return dataclasses.field(default=default, repr=not secret, metadata=metadata)


def table_of(settings_class: type[Any], groups: Mapping[str, str]) -> tuple[Setting, ...]:
    """The rows of a dataclass; `groups` maps the first field of each group to the group's title."""
    rows: list[Setting] = []
    title = ""
    for field in dataclasses.fields(settings_class):
        title = groups.get(field.name, title)
        metadata = dict(field.metadata)
        kind = metadata.pop("kind") or _kind_of(field.name, field.default)
        rows.append(Setting(name=field.name, kind=kind, default=cast("Value", field.default), group=title, **metadata))
    return tuple(rows)


def show_number(kind: Kind, number: int) -> str:
    """A bound or a default as a person would write it: 64 MiB instead of 67108864."""
    if kind == "bytes":
        for unit, size in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
            if number and number % size == 0:
                return f"{number // size} {unit}"
    return str(number)


def _kind_of(name: str, default: object) -> Kind:
    match default:
        case bool():
            return "switch"
        case int():
            return "bytes" if name.endswith("_bytes") else "ms" if name.endswith("_ms") else "count"
        case tuple():
            return "list"
        case _:
            return "path"


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.strip() == value != "" and value.isprintable()


def _read_number(kind: Kind, given: object) -> int | None:
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    found = _NUMBER.fullmatch(given.strip()) if isinstance(given, str) else None
    factor = _UNITS[kind].get(found[2].lower()) if found else None
    return int(found[1]) * factor if found and factor else None


def _read_list(given: object) -> tuple[str, ...] | None:
    if isinstance(given, str):
        # One comma may end the list. Any other empty entry is a mistake, and the value is refused.
        return tuple(part.strip() for part in given.strip().removesuffix(",").split(","))
    if isinstance(given, list | tuple):
        parts = cast("list[object] | tuple[object, ...]", given)
        return tuple(part for part in parts if isinstance(part, str)) if all(map(_is_text, parts)) else None
    return None


def holds_credentials(url: str) -> bool:
    """Whether a URL names a user, as far as can be told: a password may contain any character, also / and ?."""
    rest = url.partition("://")[2] or url
    authority = rest.partition("/")[0]
    return "@" in authority or (":" in authority and "@" in rest)


def shown_url(url: str) -> str:
    """A URL as it may be printed: without what can be a secret, which is user, password, query and fragment."""
    if holds_credentials(url):
        scheme, separator, _ = url.partition("://")
        return f"{scheme}://…" if separator else "…"
    return re.split("[?#]", url)[0]


def service_link_hint(given: object) -> str:
    """Where a value like tcp://10.0.0.1:4000 comes from: Kubernetes sets NAME_PORT for each Service of a namespace."""
    if not str(given).startswith("tcp://"):
        return ""
    return " (set by Kubernetes for a Service named topics; `enableServiceLinks: false` in the pod prevents that)"

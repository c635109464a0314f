"""Error messages for request bodies: which field is wrong, what it must be, and which name was probably meant.

The decoder stops at the first mistake and reports it in terms of Python types. Here it is translated: the type that the
body is decoded to says which fields and values exist. All of this runs only after decoding has failed.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec import inspect

from topics.model.errors import InvalidRequest
from topics.model.requests.nesting import NESTING_MAX

# The field of a mistake about the body as a whole.
BODY = "body"
# Names and values in messages are cut after this many characters.
SHOWN_CHARS_MAX = 64
# Names less similar than this are not suggested; known names are listed instead, up to this many.
LIKENESS_MIN = 0.75
LISTED_MAX = 12
# Added to mistakes where a body has no records, or a record no data: the form that was probably not known.
_FORMS: Final[Mapping[str, str]] = {
    "records": 'the form is {"records": [{"data": …}, …]}',
    "data": 'a record is {"data": …}',
}

_AT = " - at `"
_STEP = re.compile(r"\[[^\]]*\]|[^.\[\]]+")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_ENUM = re.compile(r"Invalid enum value (.*)", re.DOTALL)
_TYPES = re.compile(r"Expected `([^`]*)`(?:, got `([^`]*)`)?(.*)", re.DOTALL)
# A first half without a second, or a second without a first. An escaped backslash begins neither.
_LONE = re.compile(
    rb"(?<!\\)\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)(?<!\\)\\u[dD][c-fC-F]", re.DOTALL
)
LONE_SEARCH_BYTES = 64
_BYTE = re.compile(r"\(byte (\d+)\)")

_WANTED: Final[Mapping[str, str]] = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
_GIVEN: Final[Mapping[str, str]] = {**_WANTED, "int": "a number", "float": "a number with a fraction"}
_BOUNDS = (
    (re.compile(r" of length >= (\d+)"), r" of at least \1 characters"),
    (re.compile(r" of length <= (\d+)"), r" of at most \1 characters"),
    (re.compile(r" >= (\S+)"), r" of at least \1"),
    (re.compile(r" <= (\S+)"), r" of at most \1"),
    (re.compile(r" matching regex (.*)"), r" that matches \1"),
)


def mistake(error: msgspec.ValidationError, kind: type, within: str = "") -> InvalidRequest:
    """The error for a body, or a part of it called `within`, that does not fit the type `kind`."""
    text, at, path = str(error).rpartition(_AT)
    if at:
        path = path.removesuffix("`").removeprefix("$").removeprefix(".")
    else:
        text, path = path, ""
    place = _joined(within, path)
    if found := _UNKNOWN.fullmatch(text):
        return unknown_field(found[1], _fields(kind, path), place)
    if found := _MISSING.fullmatch(text):
        field = _joined(place, found[1])
        return InvalidRequest(f"{field} is missing{_form([found[1]])}", field=field)
    field = place or BODY
    if found := _ENUM.fullmatch(text):
        allowed = ", ".join(f'"{value}"' for value in _choices(kind, path))
        return InvalidRequest(f"{field} must be one of {allowed}, not {_value(found[1])}", field=field)
    if found := _TYPES.fullmatch(text):
        form = _form(_fields(kind, path))
        return InvalidRequest(f"{field} must be {_wanted(found[1], found[3])}{_given(found[2])}{form}", field=field)
    return InvalidRequest(f"{field}: {_shown(text)}", field=field)


def unknown_field(name: str, known: Iterable[str], within: str = "") -> InvalidRequest:
    """A field that does not exist here; `nearest` in the detail is the one that was probably meant."""
    names = list(known)
    field = _joined(within, _shown(name))
    near = _nearest(name, names)
    if near is not None:
        return InvalidRequest(f'{field} is not a known field; did you mean "{near}"?', field=field, nearest=near)
    listed = ", ".join(names[:LISTED_MAX]) + (", …" if len(names) > LISTED_MAX else "")
    hint = f"known here: {listed}{_form(names)}" if names else "there are no fields here"
    return InvalidRequest(f"{field} is not a known field; {hint}", field=field)


def _nearest(name: str, names: list[str]) -> str | None:
    """A similar name; or one that only lacks its unit (`ttl`), or has its letters in another order (`tga`)."""
    if len(name) > SHOWN_CHARS_MAX:
        return None
    if near := difflib.get_close_matches(name, names, n=1, cutoff=LIKENESS_MIN):
        return near[0]
    return next((known for known in names if known.startswith(f"{name}_") or sorted(known) == sorted(name)), None)


def _form(names: list[str]) -> str:
    return next((f"; {form}" for name, form in _FORMS.items() if name in names), "")


def not_json(body: bytes, error: msgspec.DecodeError) -> InvalidRequest:
    """The error for bytes that are not JSON. The decoder stops right after a lone surrogate, or at the end."""
    stopped = _BYTE.search(str(error))
    at = int(stopped[1]) if stopped else len(body)
    if lone := _LONE.search(body, max(0, at - LONE_SEARCH_BYTES), at + LONE_SEARCH_BYTES):
        return lone_surrogate(f"body (byte {lone.start()})", BODY)
    return InvalidRequest(f"body is not valid JSON: {error}", field=BODY)


def lone_surrogate(what: str, field: str) -> InvalidRequest:
    """The error for half a character: a surrogate is valid Unicode only together with its other half."""
    return InvalidRequest(f"{what} has a lone surrogate (\\ud800 to \\udfff without its other half)", field=field)


def nested_too_deeply(field: str) -> InvalidRequest:
    """The error for JSON that is nested deeper than every reader can be expected to decode."""
    return InvalidRequest(
        f"{field} is nested too deeply: at most {NESTING_MAX} levels of arrays and objects",
        field=field,
        max=NESTING_MAX,
    )


def _joined(place: str, name: str) -> str:
    return f"{place}{'' if name.startswith('[') else '.'}{name}" if place and name else place or name


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"


def _value(quoted: str) -> str:
    return f'"{_shown(quoted[1:-1])}"' if quoted[:1] == "'" else _shown(quoted)


def _wanted(types: str, bound: str) -> str:
    """`null` for an optional field means absent, so it is not listed as a choice."""
    names = [_WANTED.get(name, name) for name in types.split(" | ") if name != "null" or types == "null"]
    for pattern, words in _BOUNDS:
        bound = pattern.sub(words, bound)
    return f"{' or '.join(names)}{bound}"


def _given(kind: str | None) -> str:
    return "" if kind is None else f", not {_GIVEN.get(kind, kind)}"


# --- what the type says ---


def _fields(kind: type, path: str) -> list[str]:
    structs = (found for found in _types_at(kind, path) if isinstance(found, inspect.StructType))
    return [field.encode_name for struct in structs for field in struct.fields]


def _choices(kind: type, path: str) -> list[str]:
    literals = (found for found in _types_at(kind, path) if isinstance(found, inspect.LiteralType))
    return [str(value) for literal in literals for value in literal.values]


def _types_at(kind: type, path: str) -> list[inspect.Type]:
    """The types allowed at a path like `records[3].tag`; all keys of a map have the same type."""
    found = list(_plain(_type_info(kind)))
    for step in _STEP.findall(path):
        found = [deeper for each in found for deeper in _deeper(each, step)]
    return found


@functools.lru_cache(maxsize=128)
def _type_info(kind: type) -> inspect.Type:
    return inspect.type_info(kind)


def _deeper(kind: inspect.Type, step: str) -> Iterator[inspect.Type]:
    match kind:
        case inspect.StructType():
            for field in kind.fields:
                if field.encode_name == step:
                    yield from _plain(field.type)
        case inspect.ListType():
            yield from _plain(kind.item_type)
        case inspect.DictType():
            yield from _plain(kind.value_type)
        case _:
            return


def _plain(kind: inspect.Type) -> Iterator[inspect.Type]:
    """A union as its parts, without annotations."""
    match kind:
        case inspect.UnionType():
            for part in kind.types:
                yield from _plain(part)
        case inspect.Metadata():
            yield from _plain(kind.type)
        case _:
            yield kind

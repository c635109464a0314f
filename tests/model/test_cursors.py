"""Cursors: their bytes stay what clients have stored, and nothing else is taken for one."""

import pytest

from topics.api.v0.queue_schema import LeasePlace
from topics.model.cursors import AfterName, CursorWriter, page_cursor, place_of, positions_of, single_id
from topics.model.errors import InvalidRequest

MANY = {f"t{number:02}": number * 100 for number in range(65)}


def test_cursors_of_earlier_versions_are_the_same_bytes() -> None:
    assert page_cursor(AfterName("orders")) == "eyJhZnRlciI6Im9yZGVycyJ9"
    assert page_cursor(LeasePlace(1700, 12)) == "eyJkZWFkbGluZSI6MTcwMCwic2VxIjoxMn0="
    assert single_id("a", 7) == b"eyJhIjo3fQ"
    assert CursorWriter({"b": 1, "a": 2}, 3).id_at("b", 4) == b"eyJhIjoyLCJiIjo0LCJ-IjozfQ"
    assert CursorWriter(MANY, 2).id_at("t64", 6401).startswith(b"Abnff760FswWAgBkyAGsApAD9APYBLwFoAaEB-gHzAiwCZQK")


def test_a_cursor_leads_back_to_its_place() -> None:
    assert place_of(page_cursor(AfterName("ü")), AfterName) == AfterName("ü")
    assert place_of(page_cursor(LeasePlace(5, 6)).rstrip("="), LeasePlace) == LeasePlace(5, 6)
    assert positions_of(single_id("a", 7).decode() + "==", ["a"]) == {"a": 7}
    assert positions_of(CursorWriter(MANY, 2).id_at("t64", 6401).decode(), MANY) == {**MANY, "t64": 6401, "~": 2}


@pytest.mark.parametrize("cursor", ["%%%", "eyJ", "AQID", "bnVsbA", "eyJhIjoi-fQ", "é", "\n", "eyJhIjotMX0"])
def test_nothing_else_is_taken_for_a_cursor(cursor: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^cursor ") as caught:
        place_of(cursor, AfterName)
    assert caught.value.detail == {"field": "cursor"}
    with pytest.raises(InvalidRequest, match=r"^cursor "):
        positions_of(cursor, ["a"])

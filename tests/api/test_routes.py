"""The route table: literal before name, every error code with a status."""

import pytest

from topics.api.call import Call
from topics.api.errors import STATUSES, headers_of, status_of
from topics.api.routes import Route, RouteTable
from topics.model import errors
from topics.model.errors import Throttled, TopicsError


def nothing(call: Call) -> None:
    raise AssertionError


def route(method: str, path: str) -> Route:
    return Route(method=method, path=path, handler=nothing, summary="A test.")


TABLE = RouteTable(
    [
        route("GET", "/v0/topics"),
        route("GET", "/v0/topics/{topic}"),
        route("POST", "/v0/topics/{topic}"),
        route("POST", "/v0/topics/{topic}/diff"),
        route("GET", "/v0/routers/{router}"),
        route("GET", "/v0/routers/special"),
        route("GET", "/healthz"),
    ]
)


@pytest.mark.parametrize(
    ("path", "found", "name"),
    [
        ("v0/topics", "/v0/topics", ""),
        ("v0/topics/a", "/v0/topics/{topic}", "a"),
        ("v0/topics/diff", "/v0/topics/{topic}", "diff"),
        ("v0/routers/special", "/v0/routers/special", ""),
        ("v0/routers/a->b", "/v0/routers/{router}", "a->b"),
        ("healthz", "/healthz", ""),
    ],
)
def test_a_path_leads_to_its_route_and_name(path: str, found: str, name: str) -> None:
    result = TABLE.find(path.split("/"))
    assert result is not None
    by_method, given = result
    assert by_method["GET"].route.path == found
    assert by_method["HEAD"] is by_method["GET"]
    assert given == name


@pytest.mark.parametrize(
    "path", ["", "v0", "v0/topics/", "v0/topics//diff", "v0/topics/a/", "v0/topics/a/b", "v0/nothing/a", "V0/topics"]
)
def test_other_paths_lead_nowhere(path: str) -> None:
    assert TABLE.find(path.split("/")) is None


def test_the_same_row_twice_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="twice"):
        RouteTable([route("GET", "/v0/a"), route("GET", "/v0/a")])


def subclasses(of: type[TopicsError]) -> list[type[TopicsError]]:
    return [found for child in of.__subclasses__() for found in (child, *subclasses(child))]


def test_every_error_a_request_can_meet_has_a_status() -> None:
    not_over_http = {"data_dir_locked", "data_dir_incompatible", "wrong_setting", "cannot_start", "damaged_backup"}
    not_over_http |= {"bucket_error", "not_in_bucket"}  # of a start or a restore
    no_reply = {"connection_failed", "timeout", "bad_answer", "closed", "job_cancelled", "job_failed", "result_timeout"}
    codes = {found.code for found in subclasses(errors.TopicsError)} - not_over_http - no_reply
    assert codes <= set(STATUSES), codes - set(STATUSES)


def test_an_unknown_code_is_a_server_error() -> None:
    assert status_of("no_such_code") == 500


@pytest.mark.parametrize(
    ("detail", "seconds"), [({"retry_after_ms": 1500}, b"2"), ({"retry_after_ms": 10}, b"1"), ({"limit": "x"}, b"1")]
)
def test_a_throttle_says_when_to_come_back(detail: dict[str, object], seconds: bytes) -> None:
    assert headers_of(Throttled("wait", detail=detail)) == ((b"Retry-After", seconds),)

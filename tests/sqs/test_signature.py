"""Signature Version 4: published examples, and everything about a request that a signature must cover."""

import hashlib
from typing import Any

import pytest

from topics.api.sqs.errors import SqsError
from topics.api.sqs.signature import (
    SKEW_S_MAX,
    Signable,
    Signed,
    Verifier,
    canonical_request,
    parse_authorization,
    signing_key,
    string_to_sign,
)

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
EMPTY = hashlib.sha256(b"").hexdigest()
AT_S = 1_440_938_160.0  # 20150830T123600Z
HEADERS = {b"host": b"example.amazonaws.com", b"x-amz-date": b"20150830T123600Z"}


def signature_of(request: Signable, service: str, names: tuple[bytes, ...] = (b"host", b"x-amz-date")) -> str:
    import hmac

    scope = f"20150830/us-east-1/{service}/aws4_request"
    text = string_to_sign("20150830T123600Z", scope, canonical_request(request, names))
    return hmac.digest(signing_key(SECRET, "20150830", "us-east-1", service), text, "sha256").hex()


@pytest.mark.parametrize(
    ("method", "query", "expected"),
    [
        ("GET", b"", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        ("POST", b"", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
        ("GET", b"Param2=value2&Param1=value1", "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"),
    ],
)
def test_examples_that_aws_has_published_have_the_published_signatures(
    method: str, query: bytes, expected: str
) -> None:
    assert signature_of(Signable(method, b"/", query, HEADERS, EMPTY), "service") == expected


def request_of(**changed: Any) -> Signable:
    headers = {
        b"host": b"127.0.0.1:4000",
        b"x-amz-date": b"20150830T123600Z",
        b"x-amz-target": b"AmazonSQS.SendMessage",
    }
    request = Signable("POST", b"/", b"", headers, hashlib.sha256(b"{}").hexdigest())
    return request._replace(**changed)


NAMES = (b"host", b"x-amz-date", b"x-amz-target")


def signed_of(request: Signable, **changed: Any) -> Signed:
    signature = signature_of(request, "sqs", NAMES)
    return Signed("key", "20150830", "us-east-1", "sqs", "aws4_request", NAMES, signature)._replace(**changed)


def verify(request: Signable, signed: Signed, now_s: float = AT_S, secret: str = SECRET, **more: Any) -> None:
    Verifier().verify(request, signed, secret, now_s, **more)


def test_a_request_as_it_was_signed_is_accepted_within_fifteen_minutes() -> None:
    request = request_of()
    for skew_s in (0, SKEW_S_MAX, -SKEW_S_MAX):
        verify(request, signed_of(request), AT_S + skew_s)


@pytest.mark.parametrize("skew_s", [SKEW_S_MAX + 1, -SKEW_S_MAX - 1])
def test_one_of_another_time_is_refused_and_says_so(skew_s: int) -> None:
    request = request_of()
    with pytest.raises(SqsError, match=r"expired|not yet current"):
        verify(request, signed_of(request), AT_S + skew_s)


@pytest.mark.parametrize(
    "changed",
    [
        {"method": "PUT"},
        {"path": b"/000000000000/other"},
        {"query": b"a=b"},
        {"body_sha256": EMPTY},
        {"headers": {**request_of().headers, b"x-amz-target": b"AmazonSQS.DeleteQueue"}},
        {"headers": {**request_of().headers, b"host": b"elsewhere"}},
    ],
)
def test_whatever_is_changed_on_the_way_the_signature_does_not_match(changed: dict[str, Any]) -> None:
    signed = signed_of(request_of())
    with pytest.raises(SqsError) as caught:
        verify(request_of(**changed), signed)
    assert (caught.value.shape, caught.value.http_status) == ("SignatureDoesNotMatch", 403)


def test_another_secret_day_service_or_region_does_not_match() -> None:
    request = request_of()
    signed = signed_of(request)
    with pytest.raises(SqsError, match="does not match"):
        verify(request, signed, secret="another")
    for changed in ({"date": "20150829"}, {"service": "s3"}, {"region": "eu-west-1"}, {"terminator": "aws5_request"}):
        with pytest.raises(SqsError, match=r"does not match|scoped"):
            verify(request, signed._replace(**changed))


@pytest.mark.parametrize("name", NAMES)
def test_a_header_that_decides_something_must_be_signed(name: bytes) -> None:
    request = request_of()
    names = tuple(other for other in NAMES if other != name)
    with pytest.raises(SqsError, match="must be signed"):
        verify(request, signed_of(request, headers=names, signature=signature_of(request, "sqs", names)))


def test_the_digest_of_the_body_may_be_declared_but_must_be_true() -> None:
    for declared, accepted in ((b"UNSIGNED-PAYLOAD", True), (request_of().body_sha256.encode(), True), (b"00", False)):
        request = request_of(headers={**request_of().headers, b"x-amz-content-sha256": declared})
        names = (*NAMES, b"x-amz-content-sha256")
        signed = signed_of(request, headers=names, signature=signature_of(request, "sqs", names))
        if accepted:
            verify(request, signed)
        else:
            with pytest.raises(SqsError, match="does not match"):
                verify(request, signed)


def test_a_path_that_a_proxy_has_shortened_is_checked_as_the_client_signed_it() -> None:
    signed = signed_of(request_of(path=b"/base/"))
    with pytest.raises(SqsError):
        verify(request_of(), signed)
    verify(request_of(), signed, paths=(b"/base/", b"/"))


@pytest.mark.parametrize(
    ("header", "shape"),
    [
        (None, "MissingAuthenticationToken"),
        (b"Bearer abc", "IncompleteSignature"),
        (b"AWS4-HMAC-SHA256 Credential=a/20150830/r/sqs/aws4_request", "IncompleteSignature"),
        (b"AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=00", "IncompleteSignature"),
    ],
)
def test_a_header_that_is_no_signature_is_named_as_such(header: bytes | None, shape: str) -> None:
    with pytest.raises(SqsError) as caught:
        parse_authorization(header)
    assert (caught.value.shape, caught.value.http_status) == (shape, 403)

"""From the setting `bucket` to a bucket that works: which kind it is, and whether it can do what the protocol needs."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from urllib.parse import urlsplit

from topics.model.setting_types import WrongSetting, holds_credentials, shown_url
from topics.storage.bucket.bucket import BucketError, Changed, Exists, ObjectBucket
from topics.storage.bucket.object_store import NAMED, ObjectStoreBucket
from topics.storage.bucket.shared_directory import SharedDirectory
from topics.storage.bucket.slots import LOG
from topics.storage.bucket.starting.patience import Patience
from topics.storage.directory import META

PROBE = "probe/"
SCHEMES = ("s3", "gs", "az")


def is_bucket(path: str) -> bool:
    """Whether it is the address of a bucket; of directories, only one with a log in it that is no data directory."""
    scheme, found, rest = path.partition("://")
    if scheme == "file":
        return os.path.isdir(os.path.join(rest, LOG)) and not os.path.exists(os.path.join(rest, META))
    return bool(found) and scheme in SCHEMES


def connect(url: str, environ: Mapping[str, str], *, named: str = NAMED) -> ObjectBucket:
    """The bucket of a URL, which errors call `named`. Asks nothing of it yet; raises WrongSetting if it is wrong."""
    if holds_credentials(url):
        raise WrongSetting(
            f"{named} contains credentials; leave them out, and give them by the environment, a profile or the "
            "role of the machine",
            setting="bucket",
        )
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise _wrong(url, str(error), named) from None
    if parts.query or parts.fragment:
        raise _wrong(url, "it must end with the prefix, without ? and #", named)
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/"):
            raise _wrong(url, "a directory has three slashes: file:///a/shared/directory", named)
        return SharedDirectory(parts.path)
    if parts.scheme not in SCHEMES or not parts.netloc:
        raise _wrong(url, "it must be s3://bucket/prefix, gs://…, az://… or file:///a/shared/directory", named)
    return ObjectStoreBucket(url, environ, named)


def check(bucket: ObjectBucket, url: str, patience: Patience) -> None:
    """Write, replace and remove an object; raises WrongSetting, in one line that says what to do."""
    try:
        patience.ask(lambda: _probe(bucket, url))
    except BucketError as error:
        raise _wrong(
            url, f"{error.message}; check that it exists, the endpoint, and the rights of the credentials"
        ) from None


def _probe(bucket: ObjectBucket, url: str) -> None:
    key = PROBE + secrets.token_hex(8)
    what = "write to it"
    try:
        bucket.create(key, b"1")
        what = "read it"
        if bucket.read(key) is None:
            raise _wrong(url, "an object that was just written cannot be read")
        what = "write to it only if an object does not exist"
        _refuses(url, lambda: bucket.create(key, b"2"))
        what = "replace one version of an object"
        etag = bucket.swap(key + "-p", b"1", None)
        bucket.swap(key + "-p", b"2", etag)
        _refuses(url, lambda: bucket.swap(key + "-p", b"3", etag))
        what = "list it"
        if key not in [listed.key for listed in bucket.listing(PROBE)]:
            raise _wrong(url, "an object that was just written is not listed")
        what = "delete from it"
        bucket.delete([key, key + "-p"])
    except BucketError as error:
        raise type(error)(f"cannot {what}: {error.message}", **error.detail) from None


def _refuses(url: str, write: object) -> None:
    assert callable(write)
    try:
        write()
    except (Exists, Changed):
        return
    raise _wrong(
        url,
        "it ignores the conditions of writes (If-None-Match, If-Match), so two servers could overwrite each other's "
        "log; use a store that supports conditional writes",
    )


def _wrong(url: str, why: str, named: str = NAMED) -> WrongSetting:
    return WrongSetting(f"{named} is {shown_url(url)!r}, and that does not work: {why}", setting="bucket")

"""A bucket of S3, Google or Azure, through `obstore`, which is the extra `topicsd[bucket]`.

Credentials come from where the programs of each provider look: the environment, for S3 also the profile in
`~/.aws`, and the machine's own role. None is a setting of ours, so none can be shown or logged by us; an error is cut
to its first line, because the rest may describe the whole request, and begins in plain words.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from topics.model.extras import install_command
from topics.model.setting_types import WrongSetting
from topics.storage.bucket.bucket import Changed, Exists, Found, Listed, Refused, Unreachable
from topics.storage.disk import Buffer, Disk, write_all

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# The variable of the setting.
NAMED = "TOPICS_BUCKET"
# A request that takes longer is given up; what became of it is found out by asking.
REQUEST_S = 10.0
CONNECT_S = 3.0
DELETES_AT_ONCE = 100
CHUNK_BYTES = 5 << 20
# In what the library reports of an answer: its status, and S3's name of the error in its body.
_STATUS = re.compile(r"status code: (\d{3})\b")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_MEANINGS: Final[Mapping[str, str]] = {
    "401": "access is denied",
    "403": "access is denied",
    "404": "not found",
    "429": "too many requests",
    "503": "too many requests, or not available for now",
}


class ObjectStoreBucket:
    """A `ObjectBucket` behind `obstore`."""

    def __init__(self, url: str, environ: Mapping[str, str], named: str = NAMED, disk: Disk | None = None) -> None:
        try:
            import obstore
            from obstore.exceptions import UnknownConfigurationKeyError
            from obstore.store import from_url
        except ImportError:
            raise WrongSetting(
                f"{named} is {url!r}, which needs the extra `bucket`: {install_command('bucket')}",
                setting="bucket",
            ) from None
        self._disk = disk or Disk()
        self._obstore = obstore
        options = _profile(environ) if url.startswith("s3:") else {}
        endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or environ.get("AWS_ENDPOINT")
        if url.startswith("s3:") and endpoint:
            options["endpoint"] = endpoint
        try:
            self._store: ObjectStore = from_url(
                url,
                client_options={
                    "timeout": timedelta(seconds=REQUEST_S),
                    "connect_timeout": timedelta(seconds=CONNECT_S),
                    "allow_http": bool(endpoint and endpoint.startswith("http://")),
                },
                # A repeated create would find its own first attempt: the caller decides what that means.
                retry_config={"max_retries": 0},
                **options,
            )
        except (UnknownConfigurationKeyError, obstore.exceptions.BaseError, ValueError) as error:
            raise WrongSetting(f"{named} is {url!r}: {_first_line(error)}", setting="bucket") from None

    def create(self, key: str, data: Buffer) -> None:
        with self._errors(key):
            self._obstore.put(self._store, key, data, mode="create", use_multipart=False)

    def swap(self, key: str, data: Buffer, etag: str | None) -> str:
        try:
            with self._errors(key):
                mode: Any = "create" if etag is None else {"e_tag": etag}
                made = self._obstore.put(self._store, key, data, mode=mode, use_multipart=False)
        except Exists as error:
            raise Changed(error.message, key=key) from error
        return made["e_tag"] or ""

    def upload(self, key: str, path: str) -> None:
        with self._errors(key):
            self._obstore.put(self._store, key, Path(path))

    def read(self, key: str) -> Found | None:
        with self._errors(key):
            try:
                got = self._obstore.get(self._store, key)
                return Found(bytes(got.bytes()), got.meta["e_tag"] or "")
            except FileNotFoundError:
                return None

    def read_range(self, key: str, offset: int, length: int) -> bytes | None:
        with self._errors(key):
            try:
                return bytes(self._obstore.get_range(self._store, key, start=offset, length=length))
            except FileNotFoundError:
                return None

    def download(self, key: str, path: str) -> bool:
        fd = self._disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            with self._errors(key):
                try:
                    got = self._obstore.get(self._store, key)
                except FileNotFoundError:
                    return False
                offset = 0
                for chunk in got.stream(min_chunk_size=CHUNK_BYTES):
                    offset += write_all(self._disk, fd, [bytes(chunk)], offset)
            self._disk.fdatasync(fd)
        finally:
            self._disk.close(fd)
        return True

    def listing(self, prefix: str, after: str = "") -> Iterator[Listed]:
        with self._errors(prefix):
            pages = cast("Any", self._obstore).list(self._store, prefix.rstrip("/"), offset=after or None)
            for page in pages:
                for found in page:
                    yield Listed(found["path"], found["size"], int(found["last_modified"].timestamp() * 1000))

    def expect(self, key: str, data: bytes) -> None:
        """To look costs a request, and a bucket that does not exist says so."""

    def delete(self, keys: list[str]) -> None:
        for start in range(0, len(keys), DELETES_AT_ONCE):
            some = keys[start : start + DELETES_AT_ONCE]
            with self._errors(some[0]):
                try:
                    self._obstore.delete(self._store, some)
                except FileNotFoundError:
                    pass

    @contextmanager
    def _errors(self, key: str) -> Generator[None]:
        exceptions = self._obstore.exceptions
        try:
            yield
        except exceptions.AlreadyExistsError:
            raise Exists(f"{key} exists", key=key) from None
        except exceptions.PreconditionError:
            raise Changed(f"{key} was changed by another server", key=key) from None
        except (
            exceptions.PermissionDeniedError,
            exceptions.UnauthenticatedError,
            exceptions.NotSupportedError,
            NotImplementedError,
            FileNotFoundError,
        ) as error:
            raise Refused(reason_of(error), key=key) from None
        except (exceptions.BaseError, OSError) as error:
            raise Unreachable(reason_of(error), key=key) from None


def reason_of(error: BaseException) -> str:
    """What went wrong in plain words, then what the library reports."""
    text, first_line = str(error), _first_line(error)
    if status := _STATUS.search(first_line):
        code = _CODE.search(text)
        what = _MEANINGS.get(status[1], "the bucket answered with an error")
        return f"{what} ({status[1]}{f' {code[1]}' if code else ''}): {first_line}"
    if "kind: Timeout" in text:
        return f"no answer in time: {first_line}"
    if "kind: Connect" in text:
        return f"no connection: {first_line}"
    return first_line


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0].strip()


def _profile(environ: Mapping[str, str]) -> dict[str, Any]:
    """Keys and region of the profile in `~/.aws`, which obstore does not read; nothing if the environment has keys."""
    if environ.get("AWS_ACCESS_KEY_ID"):
        return {}
    home = environ.get("HOME", "")
    name = environ.get("AWS_PROFILE") or "default"
    found: dict[str, str] = {}
    for path, section in (
        (environ.get("AWS_CONFIG_FILE") or f"{home}/.aws/config", name if name == "default" else f"profile {name}"),
        (environ.get("AWS_SHARED_CREDENTIALS_FILE") or f"{home}/.aws/credentials", name),
    ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError, OSError) as error:
            raise WrongSetting(f"cannot read {path}: {type(error).__name__}", setting="bucket") from None
        if parser.has_section(section):
            found.update(parser.items(section))
    known = {
        "aws_access_key_id": "access_key_id",
        "aws_secret_access_key": "secret_access_key",
        "aws_session_token": "session_token",
        "region": "region",
        "endpoint_url": "endpoint",
    }
    if environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION"):
        known.pop("region")
    return {ours: found[theirs] for theirs, ours in known.items() if theirs in found}

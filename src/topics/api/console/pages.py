"""The console's files over HTTP: the page, its hashed parts that caches keep for ever, and the way there from `/`.

GET /               a browser is sent to the console; anything else gets the 404 that it always got
GET /console/       the page; asked for again each time, answered 304 if it is the same
GET /console/assets/index-4f9a….js    named by its content, and compressed once, off the loop
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from topics.api.call import Call
from topics.api.console.base_path import BasePath
from topics.api.routes import Route
from topics.http.content_coding import accepts_gzip
from topics.http.refusal import Refusal
from topics.http.request import Header
from topics.model.errors import NotFound

STATIC = Path(__file__).parent / "static"
COMPRESS_LEVEL = 9
CONTENT_TYPES: Final[Mapping[str, bytes]] = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
SECURITY: Final[tuple[Header, ...]] = (
    (b"Content-Security-Policy", POLICY),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"X-Frame-Options", b"DENY"),
    (b"Referrer-Policy", b"no-referrer"),
    (b"Cross-Origin-Opener-Policy", b"same-origin"),
    (b"Cross-Origin-Resource-Policy", b"same-origin"),
)
KEPT_FOR_EVER: Header = (b"Cache-Control", b"public, max-age=31536000, immutable")
ASKED_AGAIN: Header = (b"Cache-Control", b"no-cache")
VARY: Header = (b"Vary", b"Accept-Encoding")
GZIPPED: Header = (b"Content-Encoding", b"gzip")

InThread = Callable[[Callable[[], bytes], Callable[[bytes | Refusal], None]], None]


class Asset:
    """One file of the console; `gzipped` when somebody has asked for it."""

    __slots__ = ("content", "content_type", "etag", "gzipped")

    def __init__(self, path: Path) -> None:
        self.content = path.read_bytes()
        self.content_type = CONTENT_TYPES[path.suffix]
        self.etag = b'"%b"' % hashlib.sha256(self.content).hexdigest()[:32].encode()
        self.gzipped: bytes | None = None


class ConsolePages:
    def __init__(self, base: BasePath, in_thread: InThread, static: Path = STATIC) -> None:
        self._home = base.path + "/console/"
        self._in_thread = in_thread
        self._static = static
        # Read when somebody asks for the console.
        self._files: dict[str, Asset] | None = None

    def routes(self) -> list[Route]:
        return [
            _page("/", self.lead_to_console, "A browser is sent to the console."),
            _page("/console", self.lead_to_page, "The console."),
            _page("/console/", self.page, "The console."),
            _page("/console/assets/{file}", self.asset, "A part of the console."),
        ]

    def lead_to_console(self, call: Call) -> None:
        if b"text/html" not in call.headers.get(b"accept", b"").lower():
            raise NotFound("there is no resource at this path")
        self.lead_to_page(call)

    def lead_to_page(self, call: Call) -> None:
        headers = ((b"Location", self._home.encode()), (b"Vary", b"Accept"), *SECURITY)
        call.reply(302, b"", CONTENT_TYPES[".html"], headers=headers)

    def page(self, call: Call) -> None:
        self._send(call, "index.html", ASKED_AGAIN)

    def asset(self, call: Call) -> None:
        self._send(call, f"assets/{call.name}", KEPT_FOR_EVER)

    def _send(self, call: Call, name: str, caching: Header) -> None:
        asset = self._find(name)
        headers = ((b"ETag", asset.etag), caching, *SECURITY)
        if asset.etag in call.headers.get(b"if-none-match", b""):
            call.reply(304, b"", asset.content_type, headers=headers)
        elif not accepts_gzip(call.headers.get(b"accept-encoding")):
            call.reply(200, asset.content, asset.content_type, headers=headers)
        elif asset.gzipped is not None:
            call.reply(200, asset.gzipped, asset.content_type, headers=(*headers, VARY, GZIPPED))
        else:
            self._in_thread(
                lambda: gzip.compress(asset.content, COMPRESS_LEVEL, mtime=0), self._compressed(call, asset)
            )

    def _compressed(self, call: Call, asset: Asset) -> Callable[[bytes | Refusal], None]:
        def done(result: bytes | Refusal) -> None:
            assert not isinstance(result, Refusal), "compression is never refused"
            asset.gzipped = result
            if call.open:
                call.bound.handler(call)

        return done

    def _find(self, name: str) -> Asset:
        if self._files is None:
            self._files = {
                path.relative_to(self._static).as_posix(): Asset(path)
                for path in self._static.rglob("*")
                if path.suffix in CONTENT_TYPES
            }
        asset = self._files.get(name)
        if asset is None:
            raise NotFound("the console has no such file; reload the page")
        return asset


def _page(path: str, handler: Callable[[Call], None], summary: str) -> Route:
    return Route(method="GET", path=path, handler=handler, summary=summary, always=True, public=True, is_page=True)

"""The path that a proxy serves the server at: taken off requests that still have it, and put before links."""

from __future__ import annotations

import re

from topics.http.request import Request
from topics.model.setting_types import WrongSetting
from topics.model.settings import find

_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+", re.ASCII)


class BasePath:
    """Empty unless it is set. A proxy may take the path off itself: both forms of a request are the same."""

    def __init__(self, text: str | None) -> None:
        path = (text or "").rstrip("/")
        if path and (_PATH.fullmatch(path) is None or {".", ".."} & set(path.split("/"))):
            raise WrongSetting(
                f"{find('base_path').variable} is {text!r}, but must be a path like /topics", setting="base_path"
            )
        self.path = path
        self._raw = path.encode()
        self._segments = path[1:].split("/") if path else []

    def __bool__(self) -> bool:
        return bool(self._segments)

    def take_off(self, request: Request) -> None:
        depth = len(self._segments)
        if request.path_segments[:depth] != self._segments:
            return
        # Without anything after it, it is the root: the redirect from there leads to the console.
        request.path_segments = request.path_segments[depth:] or [""]
        if request.raw_path.startswith(self._raw):
            request.raw_path = request.raw_path[len(self._raw) :] or b"/"

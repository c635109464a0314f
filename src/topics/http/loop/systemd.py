"""systemd, or another service manager: told when the process is ready, reloads, stops, and that its loop still turns.

start ─▶ EXTEND_TIMEOUT_USEC, while the log is replayed ─▶ READY=1 ─▶ WATCHDOG=1, twice per WATCHDOG_USEC ─▶ STOPPING=1
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import MutableMapping

log = logging.getLogger("topics.server")

# How much longer a start may take from now on, and how often that is said.
STARTING_S, STARTING_EVERY_S = 30, 1.0
VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class ServiceManager:
    """Reports over a socket that the environment names; without one, every report is a no-op."""

    def __init__(self, loop: asyncio.AbstractEventLoop, environ: MutableMapping[str, str]) -> None:
        """Takes the variables out of the environment: they are not meant for child processes."""
        given = {name: environ.pop(name) for name in VARIABLES if name in environ}
        self._loop = loop
        self._address = given.get("NOTIFY_SOCKET", "")
        self._socket: socket.socket | None = None
        if self._address:
            # A name that starts with @ is not in the file system.
            self._address = self._address.replace("@", "\0", 1) if self._address[0] == "@" else self._address
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        self._watchdog_s = 0.0
        if given.get("WATCHDOG_USEC", "").isdigit() and given.get("WATCHDOG_PID") in (None, str(os.getpid())):
            self._watchdog_s = int(given["WATCHDOG_USEC"]) / 2_000_000
        self._watchdog: asyncio.TimerHandle | None = None
        self._said_s = 0.0

    def starting(self, progress: float) -> None:
        """The log is still being replayed; the time limit of the start is moved on."""
        now_s = time.monotonic()
        if self._socket is not None and now_s - self._said_s >= STARTING_EVERY_S:
            self._said_s = now_s
            self._tell(f"EXTEND_TIMEOUT_USEC={STARTING_S * 1_000_000}", f"STATUS=replaying the log, {progress:.0%}")

    def ready(self) -> None:
        self._tell("READY=1", "STATUS=serving")
        if self._watchdog_s and self._socket is not None and self._watchdog is None:
            self._feed()

    def reloading(self) -> None:
        """To be followed by `ready`."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._tell("STOPPING=1", "STATUS=finishing requests, then the last checkpoint")

    def close(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _feed(self) -> None:
        """By a timer of the loop: a loop that is stuck does not do it, and the manager restarts the process."""
        self._tell("WATCHDOG=1")
        self._watchdog = self._loop.call_later(self._watchdog_s, self._feed)

    def _tell(self, *lines: str) -> None:
        if self._socket is not None:
            try:
                self._socket.sendto("\n".join(lines).encode(), self._address)
            except OSError as error:
                log.debug("the service manager was not told %s: %s", lines[0], error)

"""A real server on a small disk of its own, with a clock that can be set: started, stopped, paused, killed.

The disk is a file system of a few megabytes in a file, or in memory; where neither can be mounted it is never full. The
clock is moved by a preloaded library (`clock_step.c`); without a C compiler it is not. `missing` says which of both.
"""

from __future__ import annotations

import contextlib
import errno
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from struct import Struct

from tests.patience import PATIENCE_S
from tests.serving import TOPICS, ServerProcess

CLOCK_SOURCE = Path(__file__).with_name("clock_step.c")
DISK_BYTES = 192 << 20
BALLAST_PIECE = 64 << 10
_step = Struct("<q")


class InstalledServer(ServerProcess):
    """The installed program, as a preloaded library needs a process that is new."""

    def __init__(self, command: Sequence[str | Path], data_dir: Path, settings: dict[str, int]) -> None:
        self.command = command
        super().__init__(data_dir, **settings)


class Machine:
    """Runs one server at a time; `settings` as in the environment, without their prefix."""

    def __init__(self, root: Path, port: int, settings: dict[str, int]) -> None:
        self._root = root
        self._port = port
        self._settings = settings
        self.missing: list[str] = []
        self.server: InstalledServer | None = None
        # Servers that ran until they got SIGKILL.
        self.kills = 0
        self._disk = root / "disk"
        self._clock, self._library = root / "clock", root / "clock_step.so"
        self._step_s = 0.0
        self._mounted = self._mount()
        self._clock_moves = self._make_clock()

    def _mount(self) -> bool:
        self._disk.mkdir()
        image = self._root / "image"
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            with open(image, "wb") as file:
                file.truncate(DISK_BYTES)
            subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True, capture_output=True)
            subprocess.run(["mount", "-o", "loop", image, self._disk], check=True, capture_output=True)
            return True
        self.missing.append("a full disk (no file system can be mounted)")
        return False

    def _make_clock(self) -> bool:
        self._clock.write_bytes(bytes(_step.size))
        command = ["cc", "-shared", "-fPIC", "-O2", "-o", self._library, CLOCK_SOURCE, "-ldl"]
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            subprocess.run(command, check=True, capture_output=True)
            return True
        self.missing.append("steps of the clock (there is no C compiler)")
        return False

    # --- the server ---

    def start(self) -> None:
        command: list[str | Path] = [TOPICS]
        if self._clock_moves:
            command = ["env", f"LD_PRELOAD={self._library}", f"CLOCK_STEP_FILE={self._clock}", TOPICS]
        self.server = InstalledServer(command, self._disk / "data", {"port": self._port, **self._settings})

    @property
    def running(self) -> bool:
        return self.server is not None and self.server.process.poll() is None

    def kill(self) -> None:
        if self.server is not None:
            self.server.process.send_signal(signal.SIGKILL)
            self.kills += self.server.process.wait() == -signal.SIGKILL
            self._gone()

    def stop(self) -> None:
        """SIGTERM, and wait for its end."""
        if self.server is not None:
            with contextlib.suppress(ProcessLookupError):
                self.server.process.send_signal(signal.SIGTERM)
            self._gone()

    def pause(self, seconds: float) -> None:
        """SIGSTOP for a while."""
        if self.running and self.server is not None:
            self.server.process.send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            self.server.process.send_signal(signal.SIGCONT)

    def _gone(self) -> None:
        assert self.server is not None
        self.server.exit_code()
        self.server = None

    def ended(self) -> tuple[int, str]:
        """Exit code and log of a server that has ended by itself."""
        assert self.server is not None
        server = self.server
        code = server.exit_code()
        self.server = None
        return code, server.log

    # --- disk and clock ---

    def fill_disk(self) -> int:
        """Take all room that is left; how many bytes."""
        taken = 0
        if self._mounted:
            with contextlib.suppress(OSError), open(self._disk / "ballast", "ab", buffering=0) as file:
                while True:
                    taken += file.write(bytes(BALLAST_PIECE))
        return taken

    def make_room(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self._disk / "ballast").unlink()

    def step_clock(self, seconds: float) -> None:
        """In place: the library has the file mapped."""
        self._step_s += seconds
        with open(self._clock, "r+b", buffering=0) as file:
            file.write(_step.pack(int(self._step_s * 1e9)))

    def close(self) -> None:
        if self.running:
            self.kill()
        if self._mounted:
            until_s = time.monotonic() + PATIENCE_S
            while subprocess.run(["umount", self._disk], capture_output=True).returncode:
                if time.monotonic() > until_s:
                    raise OSError(errno.EBUSY, f"{self._disk} cannot be unmounted")
                time.sleep(0.1)

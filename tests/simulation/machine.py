"""The simulated machine: its disk, its clocks, and the server that it runs, until that is stopped or killed."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import random
import signal
from collections.abc import Callable

from tests.platter import Mode
from tests.simulation.bucket import ObjectStore, SimulatedBucket, use_simulated_bucket
from tests.simulation.disk import Platter, SimulatedDisk
from tests.simulation.loop import SimulatedLoop
from tests.simulation.network import Network
from tests.simulation.scheduler import Host, Killed, Process, Scheduler
from topics.api.auth import authenticator_of
from topics.api.console.recent_log import RecentLog
from topics.api.groups.tokens import Tokens
from topics.engine.opening.store import Store
from topics.model.errors import StorageError, StorageFull
from topics.model.settings import Settings
from topics.server import serve

# With a bucket a loop that does not run for long doubts its lease: this is how late its housekeeping may be.
IDLE_S_WITH_BUCKET = 0.9
use_simulated_bucket()


class ServerProcess(Process):
    """One run of the server, from its start to its end."""

    def __init__(self, machine: Machine, number: int, settings: Settings) -> None:
        super().__init__(f"{machine.host.name}-{number}", machine.host)
        self._machine = machine
        self._settings = settings
        self.loop = SimulatedLoop(machine.scheduler, machine.network, self)
        self.disk = SimulatedDisk(machine.platter, machine.scheduler, self, machine.died_in_a_call)
        self.bucket: SimulatedBucket | None = None
        if machine.store is not None:
            self.bucket = SimulatedBucket(machine.store, self, self.disk)
            self.loop.idle_s_max = IDLE_S_WITH_BUCKET
        self.ended = False
        # What made it end by itself, other than a signal.
        self.error: BaseException | None = None

    def main(self) -> None:
        settings: Settings | None = self._settings
        authenticator = authenticator_of(self._settings)
        try:
            tokens = Tokens(self._settings, authenticator)
            while settings is not None:
                settings = self.loop.run_main(serve(settings, authenticator, tokens, {}, RecentLog(), disk=self.disk))
                if settings is not None:
                    self._machine.starts_again(self)
        except Killed:
            raise
        except Exception as error:  # noqa: BLE001  a checker judges whether it was right to give up
            self.error = error
        finally:
            asyncio._set_running_loop(None)
            self.ended = True
            if not self.dead:
                self._machine.process_ended(self)


class RepairProcess(Process):
    """One run of `topics repair`."""

    def __init__(self, machine: Machine) -> None:
        super().__init__("repair", machine.host)
        self._settings = machine.settings
        self._disk = SimulatedDisk(machine.platter, machine.scheduler, self)

    def main(self) -> None:
        store = Store(self._settings.data_dir, self._settings, disk=self._disk, repair=True)
        for _ in store.opening():
            pass
        store.close()


class Machine:
    """Runs one server at a time. `on_event` is told what happens to it. `store` is the bucket, if there is one."""

    def __init__(
        self,
        scheduler: Scheduler,
        network: Network,
        settings: Settings,
        rng: random.Random,
        on_event: Callable[[str, str], None],
        host: Host,
        store: ObjectStore | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.network = network
        self.settings = settings
        self.platter = Platter(rng, os.path.dirname(settings.data_dir))
        self.host = host
        self.store = store
        self._on_event = on_event
        self.server: ServerProcess | None = None
        self._starts = 0
        self.failures: list[str] = []
        # Whether the last server has ended by itself, and not for want of a disk.
        self.refused = False

    @property
    def running(self) -> bool:
        return self.server is not None

    def start(self, *, standby: bool = False) -> None:
        """Start a server if none runs."""
        if self.server is not None:
            return
        self._starts += 1
        self.server = server = ServerProcess(self, self._starts, dataclasses.replace(self.settings, standby=standby))
        self._on_event("start", server.name)
        self.scheduler.start(server, server.main, "main")

    def stop(self) -> None:
        """SIGTERM; the server ends when it has drained."""
        if self.server is not None:
            self._on_event("stop", self.server.name)
            self.server.loop.signal(signal.SIGTERM)

    def repair(self) -> None:
        """Called by a fiber while no server runs; what cannot be repaired ends the world."""
        self._on_event("repair", "")
        repair = RepairProcess(self)
        self.scheduler.join(self.scheduler.start(repair, repair.main, "main"), None)
        self.refused = False

    def kill(self, where: str = "") -> None:
        """SIGKILL."""
        self._end("kill", where, silent=False)

    def died_in_a_call(self, where: str) -> None:
        self.kill(where)

    def lose_power(self, mode: Mode) -> None:
        """The machine goes off, and is on again at once; its server has to be started."""
        self._end("power loss", mode, silent=self.platter.rng.random() < 0.5)
        self.platter.lose_power(mode)
        self.platter.kill_in_calls = None
        self.host.boot_s = self.scheduler.now_s

    def lose_disk(self) -> None:
        """The machine is replaced by another one of the same name, with an empty disk."""
        self._end("disk loss", "", silent=self.platter.rng.random() < 0.5)
        self.platter.wipe()
        self.platter.kill_in_calls = None
        self.host.boot_s = self.scheduler.now_s

    def pause(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after that time."""
        if self.server is not None:
            self._on_event("pause", f"{seconds:.3f} s")
            self.scheduler.pause(self.server, seconds)

    def step_clock(self, seconds: float) -> None:
        self._on_event("clock", f"{seconds:+.3f} s")
        self.host.skew_s += seconds

    def starts_again(self, server: ServerProcess) -> None:
        """Another server has taken over: this one follows it."""
        gc.unfreeze()
        if server is self.server:
            self._on_event("rejoin", server.name)

    def process_ended(self, server: ServerProcess) -> None:
        """It has ended by itself."""
        if server is self.server:
            self.refused = server.error is not None and not isinstance(
                server.error, OSError | StorageError | StorageFull
            )
            self._on_event("end", f"{server.name} {server.error!r}" if server.error else server.name)
            self.failures += server.loop.failures
            self.server = None
            if self.store is not None:
                # Threads that wait for the bucket end with their process.
                self.scheduler.kill(server)
            self.network.process_died(silent=False)

    def _end(self, what: str, detail: str, *, silent: bool) -> None:
        server, self.refused = self.server, False
        self._on_event(what, detail)
        if server is not None:
            self.failures += server.loop.failures
            self.server = None
            self.scheduler.kill(server)
            self.network.process_died(silent=silent)
        # What the process has switched off.
        gc.unfreeze()

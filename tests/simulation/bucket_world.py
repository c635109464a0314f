"""A world with a bucket: machines that share it, one of them primary, and clients that go to the one that answers.

start both ─▶ set up topics ─▶ clients and faults ─▶ heal ─▶ read everything at the primary, and at its standby
              a server that ended is started again:          ─▶ stop it: the other takes over ─▶ read again
              as a standby, or as it is                       ─▶ kill that: the first takes over ─▶ read again

A machine that is alone is stopped and started, and then replaced by one with an empty disk.
"""

from __future__ import annotations

import random
from typing import cast

from tests.simulation.bucket import ObjectStore, Trouble
from tests.simulation.clients import SimulatedClient
from tests.simulation.history import Call
from tests.simulation.http_client import Connecting
from tests.simulation.machine import Machine
from tests.simulation.network import ClientSide, Network
from tests.simulation.plan import ClientPlan, Fault
from tests.simulation.reading import queue_at_rest, read_all, read_copy
from tests.simulation.scheduler import Scheduler, Stuck
from tests.simulation.world import World

# How long servers may need until one is primary, when nothing is in their way: some leases.
SETTLED_S_MAX = 300.0
# How often a start may be refused one after another: the bucket may be away for long.
REFUSALS_MAX = 60
# How far the wall clock of the second machine is from that of the first.
APART_S = (0.0, 0.0, -20.0, 0.4, 25.0)
# A server that is started without --standby, although it could have been.
PLAIN_SHARE = 0.25
# How often a client that was answered by a standby stays there, and one whose stream was good goes elsewhere.
STAYS_SHARE, WANDERS_SHARE = 0.2, 0.2


class Way(Connecting):
    """A client's way to the servers: to one of them, and to another when that one is not primary or does not answer."""

    def __init__(self, networks: dict[str, Network], rng: random.Random, place: str, *, fixed: bool = False) -> None:
        self._networks = networks
        self._rng = rng
        self._place = place
        self._fixed = fixed

    @property
    def scheduler(self) -> Scheduler:
        return self._networks[self._place].scheduler

    @property
    def place(self) -> str:
        return self._place

    def connect(self) -> ClientSide:
        return self._networks[self._place].connect()

    def moves_on(self, call: Call) -> bool:
        if self._fixed or len(self._networks) < 2:
            return False
        if call.aged:
            moves = self._rng.random() >= STAYS_SHARE
        elif call.verb == "stream" and call.status:
            moves = self._rng.random() < WANDERS_SHARE
        else:
            moves = call.status in (0, 503)
        if moves:
            self._place = self._rng.choice([place for place in self._networks if place != self._place])
        return moves


class BucketWorld(World):
    """Runs once."""

    def _make_machines(self) -> list[Machine]:
        plan = self.plan
        self.bucket = ObjectStore(self.scheduler, random.Random(f"bucket {plan.seed}"), self.note)
        self._primary = ""
        rng = random.Random(f"hosts {plan.seed}")
        machines: list[Machine] = []
        for name in plan.machines:
            # What the bucket calls the machine.
            machine = self._new_machine(name, name, bucket="file:///bucket", advertise_url=f"http://{name}:4000")
            machine.host.boot_s = rng.random() * 900
            machines.append(machine)
        machines[-1].host.skew_s = rng.choice(APART_S)
        return machines

    @property
    def mistakes(self) -> list[str]:
        """Also what the bucket was asked to do and nobody may ask."""
        assert self.bucket is not None
        return super().mistakes + [f"the bucket took what it must not: {line}" for line in self.bucket.mistakes]

    def network_of(self, client: str) -> Connecting:
        """The checks of this world ask one machine: who that is, they are told by `_primary`."""
        networks = {machine.host.name: machine.network for machine in self.machines}
        rng = random.Random(f"way {client} {self.plan.seed}")
        if client in ("final", "copy", "probe", "promoter"):
            return Way(networks, rng, self._primary, fixed=True)
        return Way(networks, rng, rng.choice(list(networks)))

    def _let_lie(self, lying: bool) -> None:
        assert self.bucket is not None
        self.bucket.lies = lying

    def _named(self, name: str) -> Machine:
        return next(machine for machine in self.machines if machine.host.name == name)

    def _others(self, machine: Machine) -> list[Machine]:
        return [other for other in self.machines if other is not machine]

    # --- running ---

    def _begin(self) -> None:
        """Nothing goes wrong at first: a server that knows none of the topics would make its own."""
        assert self.bucket is not None
        self.bucket.calm = True
        first = self.rng.random() < 0.5
        for machine in self.machines:
            machine.start(standby=first or machine is not self.machines[0])
        self._wait_primary()

    def _topics_made(self) -> None:
        assert self.bucket is not None
        self._wait_shipped()
        self._wait_copied(self.scheduler.now_s)
        self.bucket.calm = False

    def _start_again(self, machine: Machine) -> None:
        """As an operator would: with --standby, and sometimes without, which is refused if another is primary."""
        if machine.refused:
            # It would be too late for what is in its way to pass.
            self.scheduler.sleep(self.rng.random() * 2)
        alone = len(self.machines) == 1
        plain = self.rng.random() < (1 - PLAIN_SHARE if alone else PLAIN_SHARE)
        machine.start(standby=machine.refused or not plain)

    def _refusals_max(self) -> int:
        return REFUSALS_MAX

    def _strike_at(self, machine: Machine, fault: Fault) -> None:
        del machine
        target = self._target(fault.machine)
        match fault.kind:
            case "disk loss":
                target.lose_disk()
            case "pause":
                target.pause(fault.number)
            case "bucket cut":
                where, trouble = fault.detail.split()
                for one in self.machines if where == "all" else [target]:
                    self._cut_off(one, cast("Trouble", trouble), fault.number)
            case "bucket slow":
                assert self.bucket is not None
                self.bucket.slow_until_s = self.scheduler.now_s + fault.number
            case "promote":
                self.scheduler.start(self._outside, lambda: self._promote(force=bool(fault.detail)), "promoter")
            case _:
                super()._strike_at(target, fault)

    def _target(self, who: str) -> Machine:
        """The machine that is meant: by its name, or by what it is now."""
        if who not in ("primary", "standby"):
            return self._named(who)
        assert self.bucket is not None
        primary = self._named(self.bucket.reigns[-1].machine)
        return primary if who == "primary" else (self._others(primary) or [primary])[0]

    def _cut_off(self, machine: Machine, trouble: Trouble, seconds: float) -> None:
        assert self.bucket is not None
        self.bucket.spells[machine.host.name] = trouble, self.scheduler.now_s + seconds
        self.note("bucket", f"{trouble} for {seconds:g} s", machine.host.name)

    def _promote(self, *, force: bool) -> None:
        client = self._asker(self._target("standby"), "promoter")
        client.ask("promote", "", "POST", "/v0/promote", {"force": force})
        client.http.close()

    def _asker(self, machine: Machine, name: str) -> SimulatedClient:
        """A client of this machine alone."""
        before, self._primary = self._primary, machine.host.name
        client = SimulatedClient(self, ClientPlan("", name, 0, ()))
        self._primary = before
        return client

    # --- the end ---

    def _heal(self) -> None:
        super()._heal()
        assert self.bucket is not None
        self.bucket.calm = True
        self.bucket.spells.clear()
        self.bucket.slow_until_s = 0.0

    def _end(self) -> None:
        self._heal()
        self.note("end of faults", "")
        self._read_finals("as it is")
        self._read_copies()
        self._stop(self._named(self._primary))
        self._wait_take_over()
        self._read_finals("stop")
        primary = self._named(self._primary)
        if len(self.machines) > 1:
            primary.kill("at the end")
        else:
            primary.lose_disk()
        self._wait_take_over()
        self._read_finals("kill")
        self.finals[-1].rested = queue_at_rest(self)
        for machine in sorted(self.machines, key=lambda one: one.host.name == self._primary):
            self._stop(machine)

    def _read_finals(self, how: str) -> None:
        """Read everything at the primary, when all servers are up and the bucket has its log."""
        self.note("reading", how)
        self._wait_primary()
        self._wait_shipped()
        self.finals.append(read_all(self))
        self._wait_shipped()

    def _wait_take_over(self) -> None:
        """Before the one that was primary starts again, if there is another."""
        until_s = self.scheduler.now_s + SETTLED_S_MAX
        for other in self._others(self._named(self._primary)):
            while self._role(other) != "primary":
                if self.scheduler.now_s > until_s:
                    raise Stuck("the standby does not take over")
                self.scheduler.sleep(0.5)

    def _wait_primary(self) -> None:
        """Until all servers are up and one of them is primary; one that is read-only, or was refused, starts again."""
        until_s = self.scheduler.now_s + SETTLED_S_MAX
        while True:
            roles = {machine.host.name: self._role(machine) for machine in self.machines}
            primaries = [name for name, role in roles.items() if role == "primary"]
            if len(primaries) == 1 and all(roles.values()):
                self._primary = primaries[0]
                return
            if self.scheduler.now_s > until_s:
                raise Stuck(f"there is no primary, or no standby: {roles}; {self._last_end()}")
            self.scheduler.sleep(0.5)

    def _role(self, machine: Machine) -> str:
        """ "" while it does not serve as that."""
        if not machine.running and not self._supervisors_at_work:
            machine.start(standby=True)
        client = self._asker(machine, "probe")
        call = client.ask("ready", "", "GET", "/v0/ready")
        client.http.close()
        if call.code == "read_only" and not self._supervisors_at_work:
            self._stop(machine)
        return str(call.answer.get("role", "")) if call.ok else ""

    @property
    def _supervisors_at_work(self) -> bool:
        return self._restart and bool(self._supervisors)

    def _wait_shipped(self) -> None:
        """Until the bucket has the whole log."""
        until_s = self.scheduler.now_s + SETTLED_S_MAX
        while True:
            client = self._asker(self._named(self._primary), "probe")
            health = client.ask("health", "", "GET", "/v0/health").answer.get("bucket", {})
            client.http.close()
            if health.get("state") == "ok" and not health.get("lag_bytes"):
                return
            if self.scheduler.now_s > until_s:
                raise Stuck(f"the bucket does not get the log: {health}")
            self.scheduler.sleep(0.5)

    def _wait_copied(self, past_s: float) -> None:
        """Until standbys have what the primary had then."""
        until_s = self.scheduler.now_s + SETTLED_S_MAX
        for standby in self._others(self._named(self._primary)):
            while True:
                client = self._asker(standby, "probe")
                health = client.ask("health", "", "GET", "/v0/health")
                client.http.close()
                lag_ms = health.answer.get("bucket", {}).get("lag_ms", float("inf"))
                if health.ok and health.began_s - lag_ms / 1000 > past_s:
                    break
                if self.scheduler.now_s > until_s:
                    raise Stuck(f"the standby does not follow: {health}")
                self.scheduler.sleep(0.5)

    def _read_copies(self) -> None:
        """What standbys have when they are not older than what was read before."""
        self._wait_copied(self.finals[-1].read_s)
        for standby in self._others(self._named(self._primary)):
            client = self._asker(standby, "copy")
            self.copies.append(read_copy(client))
            client.http.close()

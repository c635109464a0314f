"""The clients of a world: fibers that do what programs do with the server, at random, and note every answer.

Every payload is sent for one write only, so a checker that meets it knows who wrote it, where to and how often.
"""

from __future__ import annotations

import json
import random
from typing import Any, ClassVar, Protocol

import h2.config
import h2.connection
from websockets.client import ClientProtocol
from websockets.protocol import OPEN
from websockets.uri import parse_uri

from tests.fuzz.mutation import changed
from tests.simulation.history import Call, History
from tests.simulation.http2_client import Http2Client
from tests.simulation.http_client import (
    USUAL_TIMEOUT_S,
    Connecting,
    HttpClient,
    Unanswered,
    Watch,
    read_events,
    request_bytes,
)
from tests.simulation.network import ConnectionLost
from tests.simulation.plan import ClientPlan, Plan
from tests.simulation.socket_client import SocketClient

RETRIES_MAX = 25
# Answers that stay the same when a request is repeated.
LASTING = (400, 404, 409, 422)
# How many clients use HTTP/2, and how often a request that may be repeated is also sent on another connection.
HTTP2_SHARE, DOUBLE_SHARE = 0.25, 0.05
UNIQUE_KEYS = ("one", "two", "three")
# What an error of a WebSocket would be as an answer.
STATUS_OF = {"storage_full": 507, "internal": 500}


class Surrounding(Protocol):
    """What a client needs of its world."""

    @property
    def plan(self) -> Plan: ...
    @property
    def scheduler(self) -> Watch: ...
    def network_of(self, client: str) -> Connecting:
        """The client's way to the server, or to one of them."""
        ...

    @property
    def history(self) -> History: ...
    @property
    def over(self) -> bool:
        """Whether clients stop, even if they have steps left."""
        ...


class SimulatedClient:
    """One client; `step` is one thing it does."""

    kinds: ClassVar[dict[str, type[SimulatedClient]]] = {}
    kind = ""

    def __init_subclass__(cls) -> None:
        if cls.kind:
            cls.kinds[cls.kind] = cls

    def __init__(self, world: Surrounding, plan: ClientPlan) -> None:
        self.world = world
        self.plan = plan
        self.name = plan.name
        self.rng = random.Random(f"{plan.name} {world.plan.seed}")
        drawn = random.Random(f"protocol {plan.name} {world.plan.seed}").random()
        self.network = world.network_of(plan.name)
        self.http = (Http2Client if drawn < HTTP2_SHARE else HttpClient)(self.network)
        self._payloads = 0

    def run(self) -> None:
        for _ in range(self.plan.steps):
            if self.world.over:
                break
            self.pause()
            self.step()
        self.http.close()

    def step(self) -> None:
        raise NotImplementedError

    def pause(self) -> None:
        seconds = self.rng.expovariate(1.0) * self.world.plan.pause_s
        self.world.scheduler.sleep(seconds * (20 if self.rng.random() < 0.02 else 1))

    def ask(
        self,
        verb: str,
        topic: str,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        timeout_s: float = USUAL_TIMEOUT_S,
        *,
        twice: bool = False,
    ) -> Call:
        """One request; its status is 0 if no answer came."""
        call = self.world.history.begin(self.name, verb, topic, body or {}, self.world.scheduler.now_s)
        call.twice = twice
        try:
            if twice:
                self.http.send_double(method, path, body)
            self.http.call(call, method, path, body, timeout_s)
        except Unanswered:
            pass
        return call

    def insist(self, verb: str, topic: str, method: str, path: str, body: dict[str, Any] | None = None) -> Call:
        """Repeat a request that may be repeated until it is answered, with yes or with a lasting no."""
        call = self.ask(verb, topic, method, path, body, twice=self.rng.random() < DOUBLE_SHARE)
        for _ in range(RETRIES_MAX):
            if call.ok or call.status in LASTING:
                break
            self.world.scheduler.sleep(self.rng.random() * 2)
            call = self.ask(verb, topic, method, path, body)
        return call

    def payload(self) -> str:
        self._payloads += 1
        pad = self.rng.choice((0, 0, 0, 0, 20, 300, 3_000))
        return f"{self.name}/{self._payloads}" + "." * pad

    def records(self, most: int = 4) -> list[dict[str, Any]]:
        return [{"data": self.payload()} for _ in range(self.rng.randint(1, most))]


class Writer(SimulatedClient):
    """Appends; with a key it repeats what was not answered, without one it never does.

    Where keys are forgotten it also repeats what was answered a while ago.
    """

    kind = "writer"

    def __init__(self, world: Surrounding, plan: ClientPlan) -> None:
        super().__init__(world, plan)
        self._late = random.Random(f"late {plan.name} {world.plan.seed}")
        self._keyed: list[dict[str, Any]] = []

    def step(self) -> None:
        topic = self.rng.choice(self.plan.topics)
        body: dict[str, Any] = {"records": self.records()}
        if self.rng.random() < 0.3:
            for record in body["records"]:
                record["tag"] = self.rng.choice(("red", "green"))
        path = f"/v0/topics/{topic}"
        if self.rng.random() < 0.5:
            body["idempotency_key"] = f"{self.name}-{self._payloads}"
            self.insist("append", topic, "POST", path, body)
            if self.rng.random() < 0.2:
                self.ask("append", topic, "POST", path, body)
            if "idempotency_window_ms" in self.world.plan.topic(topic).config:
                self._keyed.append(body)
                if self._late.random() < 0.5:
                    self.ask("append", topic, "POST", path, self._late.choice(self._keyed[-10:]))
        else:
            self.ask("append", topic, "POST", path, body)


class Producer(SimulatedClient):
    """Adds jobs, some of them delayed, some with a priority."""

    kind = "producer"

    def step(self) -> None:
        topic = self.plan.topics[0]
        records = self.records(6)
        for record in records:
            if self.rng.random() < 0.2:
                record["delay_ms"] = self.rng.choice((50, 1_000, 10_000))
            if self.rng.random() < 0.2:
                record["job_priority"] = self.rng.choice((1, 5, 9))
        body = {"records": records, "idempotency_key": f"{self.name}-{self._payloads}"}
        self.insist("append", topic, "POST", f"/v0/topics/{topic}", body)


class Requester(SimulatedClient):
    """Adds jobs of which there may be one at a time, by their unique keys; asks again later what was answered."""

    kind = "requester"

    def __init__(self, world: Surrounding, plan: ClientPlan) -> None:
        super().__init__(world, plan)
        self._asked: list[dict[str, Any]] = []

    def step(self) -> None:
        topic = self.plan.topics[0]
        records = self.records(3)
        for record in records:
            if self.rng.random() < 0.8:
                record["unique_key"] = self.rng.choice(UNIQUE_KEYS)
        body = {"records": records, "idempotency_key": f"{self.name}-{self._payloads}"}
        self.insist("append", topic, "POST", f"/v0/topics/{topic}", body)
        self._asked.append(body)
        if self.rng.random() < 0.4:
            self.ask("append", topic, "POST", f"/v0/topics/{topic}", self.rng.choice(self._asked[-10:]))


class Reader(SimulatedClient):
    """Reads on from its cursors, sometimes from the beginning, sometimes waiting."""

    kind = "reader"

    def __init__(self, world: Surrounding, plan: ClientPlan) -> None:
        super().__init__(world, plan)
        self._cursors: dict[str, int] = {}

    def step(self) -> None:
        topic = self.rng.choice(self.plan.topics)
        from_seq = 0 if self.rng.random() < 0.1 else self._cursors.get(topic, 0)
        body: dict[str, Any] = {"from_seq": from_seq, "limit": self.rng.choice((1, 3, 20, 256)), "include_tags": True}
        if self.rng.random() < 0.3:
            body["wait_ms"] = self.rng.choice((20, 500, 5_000))
        call = self.ask("diff", topic, "POST", f"/v0/topics/{topic}/diff", body)
        if call.ok:
            self._cursors[topic] = call.answer["next_from_seq"]
        if self.rng.random() < 0.2:
            self.ask("state", topic, "GET", f"/v0/topics/{topic}")


class Follower(SimulatedClient):
    """Follows a topic by its event stream and resumes where it was cut off. A step is one connection."""

    kind = "follower"

    def __init__(self, world: Surrounding, plan: ClientPlan) -> None:
        super().__init__(world, plan)
        self._last_id = "0"

    def step(self) -> None:
        topic = self.plan.topics[0]
        scheduler = self.world.scheduler
        request = {"from": self._last_id}
        call = self.world.history.begin(self.name, "stream", topic, request, scheduler.now_s)
        call.answer, call.server = {"records": [], "tombstones": []}, self.network.place
        until_s = scheduler.now_s + self.rng.choice((0.05, 1.0, 10.0))
        try:
            connection = self.http.open_stream(f"/v0/topics/{topic}/stream?from_seq={self._last_id}&heartbeat_ms=1000")
        except ConnectionLost:
            self.network.moves_on(call)
            return
        call.sent = True
        try:
            for name, ident, data in read_events(connection, 5.0):
                if name == "message" and data:
                    call.answer["records"].append(json.loads(data))
                    call.status = 200
                elif name == "tombstone":
                    call.answer["tombstones"].append(json.loads(data))
                if ident:
                    self._last_id = ident
                if scheduler.now_s >= until_s:
                    break
                if self.rng.random() < 0.02:
                    # Too slow for what comes.
                    scheduler.sleep(self.rng.random() * 3)
        except (ConnectionLost, TimeoutError):
            pass
        call.ended_s = scheduler.now_s
        call.request["to"] = self._last_id
        connection.close()
        self.network.moves_on(call)


class Watcher(SimulatedClient):
    """Follows a topic by WebSocket, resumes where it was cut off, publishes. A step is one connection."""

    kind = "watcher"

    def __init__(self, world: Surrounding, plan: ClientPlan) -> None:
        super().__init__(world, plan)
        self._position = 0

    def step(self) -> None:
        topic, scheduler = self.plan.topics[0], self.world.scheduler
        until_s = scheduler.now_s + self.rng.choice((0.05, 1.0, 10.0))
        try:
            socket = SocketClient(self.network, "/v0/ws", USUAL_TIMEOUT_S)
        except (ConnectionLost, TimeoutError):
            self.network.moves_on(Call(0, self.name, "stream", topic, {}, scheduler.now_s))
            return
        call = self.world.history.begin(self.name, "stream", topic, {"from": str(self._position)}, scheduler.now_s)
        call.answer, call.sent, call.server = {"records": [], "tombstones": []}, True, self.network.place
        try:
            socket.send({"op": "subscribe", "topic": topic, "from_seq": self._position})
            while scheduler.now_s < until_s:
                if self.rng.random() < 0.2:
                    self._publish(socket, call)
                else:
                    self._take(socket.receive(max(0.001, until_s - scheduler.now_s)), call)
        except (ConnectionLost, TimeoutError):
            pass
        call.ended_s = scheduler.now_s
        call.request["to"] = str(self._position)
        socket.close()
        self.network.moves_on(call)

    def _take(self, frame: dict[str, Any], stream: Call) -> None:
        match frame["op"]:
            case "record":
                stream.answer["records"] += frame["records"]
                stream.status = 200
                self._position = frame["to_seq"]
            case "tombstone":
                stream.answer["tombstones"].append(frame)
                self._position = frame["gap_to"]
            case _:
                pass

    def _publish(self, socket: SocketClient, stream: Call) -> None:
        scheduler, topic = self.world.scheduler, self.plan.topics[0]
        body = {"records": self.records()}
        call = self.world.history.begin(self.name, "append", topic, body, scheduler.now_s)
        call.sent, call.server = True, self.network.place
        until_s = scheduler.now_s + USUAL_TIMEOUT_S
        try:
            socket.send({"op": "publish", "topic": topic, "request_id": call.number, **body})
            while not call.status:
                frame = socket.receive(max(0.001, until_s - scheduler.now_s))
                if frame.get("request_id") == call.number:
                    call.status = 200 if frame["op"] == "ack" else STATUS_OF.get(frame["code"], 503)
                    call.answer = frame
                else:
                    self._take(frame, stream)
        finally:
            call.ended_s = scheduler.now_s


class QueueWorker(SimulatedClient):
    """Claims jobs and finishes, returns, extends or forgets them."""

    kind = "worker"

    def step(self) -> None:
        topic = self.plan.topics[0]
        path = f"/v0/topics/{topic}"
        body: dict[str, Any] = {"node": self.name, "max": self.rng.choice((1, 3, 10))}
        if self.rng.random() < 0.3:
            body["wait_ms"] = self.rng.choice((50, 3_000))
        if self.rng.random() < 0.3:
            body["lease_ms"] = self.rng.choice((100, 5_000))
        claim = self.ask("claim", topic, "POST", f"{path}/claim", body)
        jobs = claim.answer.get("claimed", []) if claim.ok else []
        if not jobs:
            return
        self.pause()
        seqs = [job["$seq"] for job in jobs]
        ids = {"lease_ids": [job["lease_id"] for job in jobs]} if self.rng.random() < 0.8 else {}
        if self.rng.random() < 0.2:
            lease_ms = self.rng.choice((500, 20_000))
            self.ask("extend", topic, "POST", f"{path}/extend", {"node": self.name, "seqs": seqs, "lease_ms": lease_ms})
            self.pause()
        match self.rng.choice(("ack", "ack", "ack", "nack", "forget")):
            case "ack":
                self.ask("ack", topic, "POST", f"{path}/ack", {"node": self.name, "seqs": seqs, **ids})
            case "nack":
                more: dict[str, Any] = {"error": "no"} if self.rng.random() < 0.5 else {}
                self.ask("nack", topic, "POST", f"{path}/nack", {"node": self.name, "seqs": seqs, **ids, **more})
            case _:
                pass


class Consumer(SimulatedClient):
    """One consumer of a group that acks the ranges of its batches."""

    kind = "consumer"

    def step(self) -> None:
        topic = self.plan.topics[0]
        body = {"topic_id": topic, "group_id": "group", "start": "Earliest", "limit": self.rng.choice((1, 5, 50))}
        if self.rng.random() < 0.3:
            body["timeout_seconds"] = self.rng.choice((1, 5))
        call = self.ask("consume", topic, "POST", "/v1/api/topics/consume", body)
        offsets = [message["offset"] for message in call.answer.get("messages", [])] if call.ok else []
        self.pause()
        if offsets and self.rng.random() < 0.8:
            ack = {"topic_id": topic, "group_id": "group", "from_offset": offsets[0], "upto_offset": offsets[-1]}
            self.ask("group_ack", topic, "POST", "/v1/api/topics/ack", ack)


class Transactor(SimulatedClient):
    """Stages records for two topics, and commits or aborts them; every version is new."""

    kind = "transactor"

    def __init__(self, world: Surrounding, plan: ClientPlan) -> None:
        super().__init__(world, plan)
        self._version = 0

    def step(self) -> None:
        self._version += 1
        path = f"/v0/txns/{self.name}/{self._version}"
        left, right = self.plan.topics
        stages: list[str] = []
        for number in range(self.rng.randint(1, 2)):
            stage = f"s{number}"
            for part in range(self.rng.randint(1, 2)):
                records = self.records(3)
                for record in records:
                    record["topic"] = self.rng.choice((left, right))
                body = {"stage": stage, "part": part, "records": records}
                if not self.insist("stage", "", "POST", f"{path}/stage", body).ok:
                    return
            stages.append(stage)
        self.pause()
        if self.rng.random() < 0.1:
            self.ask("abort", "", "POST", f"{path}/abort", {"stages": stages})
            return
        self.insist("commit", "", "POST", f"{path}/commit", {"stages": stages})
        if self.rng.random() < 0.2:
            self.ask("commit", "", "POST", f"{path}/commit", {"stages": stages})


class SeveralWriter(SimulatedClient):
    """Appends to several topics at once."""

    kind = "several"

    def step(self) -> None:
        topics = self.rng.sample(self.plan.topics, self.rng.randint(1, len(self.plan.topics)))
        body: dict[str, Any] = {"topics": {topic: {"records": self.records(2)} for topic in topics}}
        if self.rng.random() < 0.7:
            body["idempotency_key"] = f"{self.name}-{self._payloads}"
            self.insist("multi", "", "POST", "/v0/append", body)
        else:
            self.ask("multi", "", "POST", "/v0/append", body)


class Deleter(SimulatedClient):
    """Deletes records by their place or their tag."""

    kind = "deleter"

    def step(self) -> None:
        topic = self.rng.choice(self.plan.topics)
        if self.rng.random() < 0.5:
            head = self.ask("state", topic, "GET", f"/v0/topics/{topic}").answer.get("head_seq", 0)
            body: dict[str, Any] = {"before_seq": max(1, int(head * self.rng.random()))}
        else:
            body = {"match": ["tag", "Eq", self.rng.choice(("red", "green"))]}
            if self.rng.random() < 0.5:
                body["before_seq"] = self.rng.randint(1, 50)
        self.ask("delete", topic, "POST", f"/v0/topics/{topic}/delete", body)


class Admin(SimulatedClient):
    """Changes configurations, and looks at what a server shows of itself."""

    kind = "admin"

    def step(self) -> None:
        topic = self.rng.choice(self.plan.topics)
        match self.rng.choice(("priority", "window", "metrics", "list", "state")):
            case "priority":
                self.ask("patch", topic, "PATCH", f"/v0/topics/{topic}", {"priority": self.rng.randint(-5, 5)})
            case "window":
                body = {"idempotency_window_ms": self.rng.choice((30, 60)) * 24 * 3_600_000}
                self.ask("patch", topic, "PATCH", f"/v0/topics/{topic}", body)
            case "list":
                self.ask("list", "", "GET", "/v0/topics?page_size=3")
            case "state":
                self.ask("state", topic, "GET", f"/v0/topics/{topic}")
            case _:
                self.ask("leases", "jobs", "GET", "/v0/topics/jobs/leases")


class RouterMaker(SimulatedClient):
    """Makes the router of the world, once; it is there until the end."""

    kind = "router"

    def run(self) -> None:
        source, dest = self.plan.topics
        guarantee = self.rng.choice(("at_least_once", "exactly_once"))
        body = {"source": source, "dest": dest, "backfill": True, "guarantee": guarantee}
        self.pause()
        self.insist("router", dest, "PUT", "/v0/routers/copying", body)
        super().run()

    def step(self) -> None:
        self.ask("router state", "", "GET", "/v0/routers/copying")


class Churner(SimulatedClient):
    """Makes and deletes a topic again and again, and writes to it in between."""

    kind = "churner"

    def step(self) -> None:
        topic = self.plan.topics[0]
        match self.rng.choice(("delete", "append", "append", "append", "diff")):
            case "delete":
                self.ask("drop", topic, "DELETE", f"/v0/topics/{topic}")
            case "append":
                self.ask("append", topic, "POST", f"/v0/topics/{topic}", {"records": self.records()})
            case _:
                self.ask("diff", topic, "POST", f"/v0/topics/{topic}/diff", {"from_seq": self.rng.randint(0, 5)})


class Garbler(SimulatedClient):
    """Sends requests, frames and messages that are changed somewhere; nobody else may notice. Answers are not read.

    What it writes, if it does, goes to a topic of its own.
    """

    kind = "garbler"

    def step(self) -> None:
        try:
            connection = self.network.connect()
        except ConnectionLost:
            return
        try:
            whole, garbled = self._bytes()
            connection.send(whole + changed(garbled, [whole, garbled], self.rng))
            for _ in range(self.rng.randint(0, 3)):
                connection.receive(self.rng.random())
        except (ConnectionLost, TimeoutError):
            pass
        connection.close()

    def _bytes(self) -> tuple[bytes, bytes]:
        """What is sent as it is, and what is changed."""
        topic = self.plan.topics[0]
        request = request_bytes("POST", f"/v0/topics/{topic}", {"records": self.records()})
        match self.rng.choice(("http1", "http1", "http2", "websocket")):
            case "http1":
                return b"", request + request_bytes("GET", f"/v0/topics/{topic}", None)
            case "http2":
                session = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
                session.initiate_connection()
                head = {":method": "GET", ":path": f"/v0/topics/{topic}", ":scheme": "http", ":authority": "a"}
                session.send_headers(1, list(head.items()), end_stream=True)
                session.ping(b"12345678")
                return b"", session.data_to_send()
            case _:
                protocol = ClientProtocol(parse_uri("ws://localhost/v0/ws"))
                protocol.send_request(protocol.connect())
                hands = b"".join(protocol.data_to_send())
                protocol.state = OPEN
                for message in ({"op": "subscribe", "topic": topic}, {"op": "publish", "topic": topic, "records": []}):
                    protocol.send_text(json.dumps(message).encode())
                return hands, b"".join(protocol.data_to_send())

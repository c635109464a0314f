"""A consumer of groups as a worker would be one, tokens made by hand, and a partition driven without a server."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from typing import Any

import jwt

from tests.engine.rig import Rig
from tests.serving import Client, Reply
from topics.engine.core.pending import Busy, PendingChange
from topics.engine.groups.part import groups_of
from topics.engine.groups.verbs import Acked, Consuming
from topics.model.encoding import to_base64url
from topics.model.requests.groups import ConsumeStart, parse_start

SECRET = "a secret that is long enough for every test, whatever it is signed with"
BATCH_BYTES_MAX = 1 << 20
# A token may have been made long before its test runs.
DAY_S = 24 * 3600


def token(role: str | None = "service", secret: str = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    """An access token; a claim given as None is left out."""
    now = int(time.time())
    usual = {"sub": "worker", "iss": "kalamdb", "iat": now, "exp": now + DAY_S, "role": role, "token_type": "access"}
    kept = {name: value for name, value in {**usual, **claims}.items() if value is not None}
    return jwt.encode(kept, secret, algorithm)


def quick_hash(password: str) -> str:
    """A hash as `topics hash` prints it, by the least work: a login costs no time where that is not the subject."""
    salt = bytes(16)
    key = hashlib.scrypt(password.encode(), salt=salt, n=16, r=1, p=1, dklen=32)
    return f"scrypt$4$1$1${to_base64url(salt).decode()}${to_base64url(key).decode()}"


class Consumer:
    """One worker on a connection of its own."""

    def __init__(self, client: Client, topic: str, group: str | None = "workers") -> None:
        self.client = client
        self.topic = topic
        self.group = group

    def ask(self, **request: Any) -> Reply:
        return self.client.post("/v1/api/topics/consume", self._fields(request))

    def begin(self, **request: Any) -> None:
        """Send a consume; `client.end` reads its answer."""
        self.client.begin("POST", "/v1/api/topics/consume", self._fields(request))

    def _fields(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"topic_id": self.topic, "group_id": self.group, "start": "Earliest", **request}

    def batch(self, **request: Any) -> Any:
        reply = self.ask(**request)
        assert reply.status == 200, reply
        return reply.json

    def offsets(self, **request: Any) -> list[int]:
        return [message["offset"] for message in self.batch(**request)["messages"]]

    def ack(self, offset: int, **request: Any) -> Any:
        fields = {"topic_id": self.topic, "group_id": self.group, "upto_offset": offset, **request}
        reply = self.client.post("/v1/api/topics/ack", fields)
        assert reply.status == 200, reply
        return reply.json

    def standing(self) -> Any:
        reply = self.client.get(f"/v1/api/topics/groups?topic_id={self.topic}&group_id={self.group}")
        assert reply.status == 200, reply
        (found,) = reply.json["groups"]
        return found


def payload_of(message: Any) -> Any:
    return json.loads(base64.b64decode(message["payload"], validate=True))


class Partition:
    """One topic of a hand-driven store as its groups see it; offsets, as over HTTP."""

    def __init__(self, rig: Rig, topic: str, visibility_ms: int = 60_000) -> None:
        self.rig = rig
        self.topic = topic
        self._visibility_ms = visibility_ms
        # Whether the last batch could have been longer: by its limit, or because the rest had to come from disk.
        self.cut = False
        self.next_offset = 0
        self.opened()

    def opened(self) -> None:
        """Also after a restart: the verbs hold nothing that has to survive one."""
        self.consuming = Consuming(self.rig.engine, self.rig.clock, self._visibility_ms)

    def consume(self, group: str = "g", limit: int = 100, start: Any = "Earliest") -> list[int]:
        parsed = parse_start(start)
        while True:
            topic = self.consuming.topic(self.topic)
            try:
                start_seq = self.consuming.start_seq(topic, group, parsed)
                fixing = self.consuming.fix_latest(topic, group, parsed)
                if fixing is not None:
                    self.rig.finish(fixing)
                portion = self.rig._run(
                    lambda: self.consuming.look(topic, group, start_seq, limit, BATCH_BYTES_MAX)  # noqa: B023
                )
                claim = self.consuming.claim(portion, group)
            except Busy as busy:
                self.rig.finish(busy.change)
                continue
            if claim is not None:
                self.rig.finish(claim)
            self.rig.store.commit_log.flush()
            self.cut, self.next_offset = portion.cut, portion.next_seq - 1
            return [run.block.seq_at(number) - 1 for run in portion.runs for number in range(run.first, run.stop)]

    def ack(self, offset: int, group: str = "g", since: int | None = None) -> Acked:
        """Everything up to `offset`, or just what is from `since` on."""
        from_seq = None if since is None else since + 1

        def verb() -> PendingChange:
            return self.consuming.ack(self.consuming.topic(self.topic), group, offset + 1, from_seq)

        return self._commit(verb).result

    def reset(self, start: Any, group: str = "g") -> int:
        parsed: ConsumeStart = parse_start(start)
        return self._commit(lambda: self.consuming.reset(self.consuming.topic(self.topic), group, parsed)).result - 1

    def committed(self, group: str = "g") -> int | None:
        """The last offset that is committed."""
        known = groups_of(self.consuming.topic(self.topic))
        return known[group].committed - 1 if group in known and known[group].committed > 0 else None

    def _commit(self, verb: Any) -> PendingChange:
        return self.rig._commit(verb)

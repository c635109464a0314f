"""Nothing is lost and nothing comes twice, however often connections die while records keep coming."""

import random
import threading
import time
from pathlib import Path

import pytest

from tests.live.rig import EventSource, Watcher, watching
from tests.serving import ServerProcess, serving

KILLS = 200
TOPICS = ("orders", "audit", "clicks")


class Load:
    """Writers that run until they are stopped."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(name,)) for name in TOPICS]

    def _write(self, name: str) -> None:
        client = self._server.client()
        chance = random.Random(name)
        while not self._stop.is_set():
            client.append(name, *(chance.random() for _ in range(chance.randint(1, 20))))
            time.sleep(chance.random() * 0.004)

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


class Consumer:
    """Takes frames, remembers the id of the last one it took, and is killed at any moment."""

    def __init__(self, watcher: Watcher, url: str) -> None:
        self._watcher = watcher
        self._url = url
        self.seqs: dict[str, list[int]] = {name: [] for name in TOPICS}
        self.last_id: str | None = None
        self.frames = 0

    def connect(self) -> EventSource:
        return self._watcher.open(self._url, self.last_id)

    def take(self, stream: EventSource) -> None:
        frame = stream.event()
        if frame.event == "record":
            self.seqs[frame.data["topic"]] += frame.seqs
            self.frames += 1
        self.last_id = frame.id


@pytest.mark.slow
@pytest.mark.timeout(720)
def test_two_hundred_random_kills_under_load_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    chance = random.Random(6)
    with serving(tmp_path) as server, watching(server) as watcher:
        for name in TOPICS:
            watcher.client.append(name, 0)
        consumer = Consumer(watcher, watcher.session({name: {} for name in TOPICS}, limit=50)["stream_url"])
        with Load(server):
            for _ in range(KILLS):
                stream = consumer.connect()
                for _ in range(chance.randint(0, 30)):
                    consumer.take(stream)
                # Half of them die with frames on their way, the others without a word.
                stream.reset() if chance.random() < 0.5 else stream.close()
        stream = consumer.connect()
        heads = {name: watcher.client.state(name)["head_seq"] for name in TOPICS}
        while any(consumer.seqs[name][-1:] != [heads[name]] for name in TOPICS):
            consumer.take(stream)
        for name in TOPICS:
            assert consumer.seqs[name] == list(range(1, heads[name] + 1))
        assert consumer.frames > KILLS

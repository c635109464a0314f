"""Requests to follow topics: which ones, from which seq, and in which frames."""

from __future__ import annotations

from topics.api.schema import WatchedTopic
from topics.engine.live.feeds import FrameOptions, LiveFeeds
from topics.engine.log.reading import View
from topics.engine.log.topic import Topic
from topics.model.errors import InvalidRequest
from topics.model.names import check_topic_name
from topics.model.requests.records import UNSET, check_u64
from topics.model.requests.watch import FollowRequest, StartRequest
from topics.model.settings import Settings

# Quotes in the body of a watch: of one topic (its name, the field names of its start), and of everything else.
QUOTES_PER_TOPIC_MAX, QUOTES_MAX = 16, 1_000


class FollowRequests:
    """Checks and resolves them, for watch sessions, WebSocket and the embedded database alike."""

    def __init__(self, live: LiveFeeds, settings: Settings) -> None:
        self._live = live
        self._engine = live.engine
        self._settings = settings

    def frame_options(self, params: FollowRequest) -> FrameOptions:
        view = View(
            params.nodes(self._settings.max_node_bytes),
            tags=bool(params.include_tags),
            meta=params.shows_meta(),
            data=params.include_data is not False,
        )
        strong = params.consistency == "strong"
        limit = params.frame_records_max(self._settings.max_limit)
        return self._live.frame_options(view, limit, params.frame_bytes_max(), strong=strong)

    def check_size(self, body: bytes) -> None:
        """Refuse too many topics before they are decoded: each name and each field of a start has quotes."""
        most = self._settings.max_watch_topics
        if body.count(b'"') > QUOTES_MAX + QUOTES_PER_TOPIC_MAX * most:
            self.check_count(most + 1)

    def check_count(self, topics: int) -> None:
        if not topics:
            raise InvalidRequest("topics must name at least one topic", field="topics")
        if topics > self._settings.max_watch_topics:
            most = self._settings.max_watch_topics
            raise InvalidRequest(f"topics must name at most {most} topics", field="topics", max=most)

    def find(self, name: str, field: str) -> Topic | None:
        topic = self._engine.state.by_name.get(name)
        if topic is None:
            check_topic_name(name, field)
        return topic

    def start_of(self, topic: Topic, start: StartRequest) -> int:
        """The seq after which reading starts. May raise ColdMiss."""
        if start.tail:
            return topic.head_seq
        from_seq = check_u64(start.from_seq, "from_seq")
        if start.from_ts is not UNSET:
            from_seq = max(from_seq, self._engine.seq_before(topic, start.from_ts))
        return from_seq

    def describe(self, topic: Topic, from_seq: int) -> WatchedTopic:
        if topic.config.ttl_ms:
            self._live.expire(topic)
        return WatchedTopic(from_seq=from_seq, head_seq=topic.head_seq, earliest_seq=topic.earliest_seq)

"""The leases of a queue, as a snapshot stores them.

Without durable leases, a queue stores only what is in its jobs log: delays, unique keys, moved jobs. Every job that was
in flight is then claimable again, as if its lease had expired. A clean stop also stores the delivery counts of its
jobs and until when they rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from topics.engine.queues.due import JobPlace
from topics.engine.queues.part import open_results, queue_of, results_of
from topics.engine.queues.results.job_groups import JobGroupsImage

if TYPE_CHECKING:
    from topics.engine.log.topic import Topic
    from topics.engine.queues.due import JobStanding
    from topics.engine.queues.queue import Queue


def is_live(topic: Topic, seq: int) -> bool:
    index = topic.block_after(seq - 1)
    if index == len(topic.blocks):
        return False
    block = topic.blocks[index]
    number = block.number_after(seq - 1)
    return block.seq_at(number) == seq and any(block.alive_runs(number, number + 1))


class JobImage(msgspec.Struct, array_like=True):
    seq: int
    deliveries: int
    # 0: ready now. Otherwise when it is claimable again, after its lease or its rest.
    due_ms: int
    rest_ms: int
    # 0: not leased
    lease: int
    node: str
    error: str
    # absent in older snapshots
    priority: int = 0
    # of one with a priority: ready, and neither delayed nor delivered before
    fresh: bool = False
    progress: bytes = b""


class QueueImage(msgspec.Struct, array_like=True):
    paused: bool
    dead_lettered: int
    cursor: int
    jobs: list[JobImage]
    unique: list[tuple[bytes, int]]
    # absent in older snapshots, and without groups
    groups: JobGroupsImage | None = None


class QueueChunk(msgspec.Struct, array_like=True):
    """Some of the jobs and unique keys of a queue that has too many to be captured at once, or of its ended jobs."""

    topic_id: int
    jobs: list[JobImage]
    unique: list[tuple[bytes, int]]
    ended: bytes = b""


# Chunks of a snapshot that hold a part; no other chunk begins with this byte.
PART_CHUNK = b"\xc7"
# Above this many jobs they are captured in parts, each of which takes about a millisecond.
JOBS_AT_ONCE_MAX = 2_000
JOBS_PER_PART = 500
ENDED_PER_PART, ENDED_BYTES_PER_PART = 2_000, 1024 * 1024
_part_encoder = msgspec.msgpack.Encoder()
_part_decoder = msgspec.msgpack.Decoder(QueueChunk)


def is_large(topic: Topic, queue: Queue) -> bool:
    """Whether the jobs are captured in parts, after the topic."""
    if topic.config.durability == "ephemeral":
        return False
    return len(queue.jobs) + len(queue.unique) > JOBS_AT_ONCE_MAX


def picture(topic: Topic, queue: Queue) -> QueueImage:
    """The part of a topic's image that makes it a queue."""
    config = topic.config
    if config.durability == "ephemeral":
        return QueueImage(queue.paused, queue.dead_lettered, 0, [], [])
    cursor = queue.logged_cursor if config.leases_durable else 0
    image = QueueImage(queue.paused, queue.dead_lettered, cursor, [], [])
    results = results_of(topic)
    if results is not None and results.groups.by_name:
        image.groups = results.groups.image()
    if not is_large(topic, queue):
        image.jobs, image.unique = _job_images(topic, queue, queue.jobs), list(queue.unique.items())
    return image


def parts(topic: Topic, queue: Queue) -> Iterator[bytes]:
    """The jobs of a large queue, a few at a time, each as it is when it is captured.

    That may be later than the position of the snapshot. Folding the log from there gives the same result, because every
    change of a job is in the log, and every op sets a job's state regardless of what it was before. The same holds for
    ended jobs, which do not change.
    """
    results = results_of(topic)
    if results is not None and topic.config.durability != "ephemeral":
        for ended in results.ended.pieces(ENDED_PER_PART, ENDED_BYTES_PER_PART):
            yield PART_CHUNK + _part_encoder.encode(QueueChunk(topic.id, [], [], ended))
    if not is_large(topic, queue):
        return
    seqs, keys = list(queue.jobs), list(queue.unique)
    for first in range(0, max(len(seqs), len(keys)), JOBS_PER_PART):
        stop = first + JOBS_PER_PART
        jobs = _job_images(topic, queue, seqs[first:stop])
        unique = [(key, queue.unique[key]) for key in keys[first:stop] if key in queue.unique]
        yield PART_CHUNK + _part_encoder.encode(QueueChunk(topic.id, jobs, unique))


def restore_part(chunk: bytes, by_id: Mapping[int, Topic]) -> None:
    part = _part_decoder.decode(chunk[len(PART_CHUNK) :])
    topic = by_id.get(part.topic_id)
    queue = queue_of(topic) if topic is not None else None
    if topic is not None and queue is not None:
        _restore_jobs(topic, queue, part.jobs, part.unique)
        if part.ended:
            open_results(topic).add_ended(part.ended)


def _job_images(topic: Topic, queue: Queue, seqs: Iterable[int]) -> list[JobImage]:
    jobs = [(seq, job) for seq, job in [(seq, queue.jobs.get(seq)) for seq in seqs] if job is not None]
    if topic.config.leases_durable:
        return _with_progress(topic, [_job_image(seq, job) for seq, job in jobs])
    if queue.closing:
        return _with_progress(topic, [_without_lease(_job_image(seq, job)) for seq, job in jobs])
    return [_appended_image(seq, job) for seq, job in jobs if job.priority or _rests_since_append(job)]


def _rests_since_append(job: JobStanding) -> bool:
    return not job.deliveries and job.group is not None and job.group.place is JobPlace.RESTING


def _job_image(seq: int, job: JobStanding) -> JobImage:
    group = job.group
    if group is None or group.place is JobPlace.READY:
        fresh = group is not None and group.fresh
        return JobImage(seq, job.deliveries, 0, 0, 0, job.node, job.error, job.priority, fresh)
    lease = job.lease_of(seq) if group.place is JobPlace.LEASED else 0
    return JobImage(seq, job.deliveries, group.due_ms, group.rest_ms, lease, job.node, job.error, job.priority)


def _appended_image(seq: int, job: JobStanding) -> JobImage:
    """What its append says of a job, and no delivery since."""
    return _job_image(seq, job) if _rests_since_append(job) else JobImage(seq, 0, 0, 0, 0, "", "", job.priority, True)


def _without_lease(image: JobImage) -> JobImage:
    if image.lease:
        image.lease = image.due_ms = image.rest_ms = 0
    return image


def _with_progress(topic: Topic, images: list[JobImage]) -> list[JobImage]:
    results = results_of(topic)
    if results is not None and results.progress:
        for image in images:
            image.progress = results.progress.get(image.seq, b"")
    return images


def restore(topic: Topic, queue: Queue, image: QueueImage) -> None:
    """All records are fresh unless the image has a job for them."""
    queue.paused, queue.dead_lettered = image.paused, image.dead_lettered
    queue.pass_over(topic, image.cursor)
    _restore_jobs(topic, queue, image.jobs, image.unique)
    if image.groups is not None:
        open_results(topic).restore_groups(image.groups)


def _restore_jobs(topic: Topic, queue: Queue, jobs: list[JobImage], unique: list[tuple[bytes, int]]) -> None:
    for entry in jobs:
        if not is_live(topic, entry.seq):
            continue
        job = queue.job_for(entry.seq)
        job.deliveries, job.error, job.priority = entry.deliveries, entry.error, entry.priority
        if entry.progress:
            open_results(topic).note_progress([entry.seq], entry.progress)
        if entry.lease:
            queue.lease(job, entry.node, entry.lease, entry.due_ms - 1, entry.rest_ms)
        elif entry.fresh:
            queue.make_fresh(job)
        else:
            queue.give_back(job, entry.due_ms, 0)
    for key, seq in unique:
        if is_live(topic, seq):
            queue.pend(key, seq)

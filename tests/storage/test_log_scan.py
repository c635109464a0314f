"""Log files as they are found: what their first bytes say, frames after damage, large frames in pieces."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from topics.storage.disk import Disk
from topics.storage.steps import Steps, T, at_once
from topics.storage.wal import log_scan
from topics.storage.wal.frame import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    FileHeader,
    encode,
    encode_file_header,
    frame_magic,
    verify,
)
from topics.storage.wal.log_file import LogFile, log_name, log_number
from topics.storage.wal.log_scan import (
    PAGE_BYTES,
    PIECE_BYTES,
    FoundFile,
    HeaderState,
    SplitBody,
    find_files,
    good_frames,
    read_large,
)

pytestmark = pytest.mark.usefixtures("every_file_closed")

HEADER = FileHeader(shard=3, file_number=7, base_position=1000, salt=0xABCDEF0123456789)


def frame(body: bytes, position: int, salt: int = HEADER.salt) -> bytes:
    return b"".join(encode(body, position, 0, salt))


# --- which files there are ---


def test_only_a_name_of_twenty_digits_is_that_of_a_log_file() -> None:
    assert log_number(log_name(7)) == 7
    for name in ("0" * 20, "7.log", "x" * 20 + ".log", "notes.log", "", ".log"):
        assert log_number(name) is None


def test_a_file_just_opened_has_neither_header_nor_durable_name_whatever_its_descriptor() -> None:
    for fd in (0, 1):
        file = LogFile("", HEADER, 100, fd=fd)
        assert (file.header_pending, file.entry_durable) == (True, False)
    closed = LogFile("", HEADER, 100)
    assert (closed.fd, closed.header_pending, closed.entry_durable) == (-1, False, True)


@pytest.mark.parametrize("same_boot", [True, False])
def test_what_the_first_bytes_of_a_file_say(tmp_path: Path, same_boot: bool) -> None:
    good = encode_file_header(HEADER)
    unclear = HeaderState.DAMAGED if same_boot else HeaderState.BLANK
    for content, state in (
        (good, HeaderState.GOOD),
        (good + b"frames", HeaderState.GOOD),
        (b"", HeaderState.BLANK),
        (good[:-1], HeaderState.BLANK),
        (bytes(FILE_HEADER_BYTES), HeaderState.BLANK),
        (good[:20] + bytes(PAGE_BYTES), HeaderState.BLANK),
        (good[:-1] + bytes(PAGE_BYTES), HeaderState.BLANK),
        (good[:20] + bytes(PAGE_BYTES - 21) + b"x", HeaderState.DAMAGED),
        (b"x" + good[1:] + b"frames", HeaderState.DAMAGED),
        (bytes(FILE_HEADER_BYTES - 1) + b"xx", HeaderState.DAMAGED),
        (bytes(FILE_HEADER_BYTES) + b"x", unclear),
        (bytes(PAGE_BYTES - 1) + b"x", unclear),
        (bytes(PAGE_BYTES) + b"x", HeaderState.BLANK),
        (encode_file_header(HEADER._replace(file_number=6)), HeaderState.BLANK),
        (encode_file_header(HEADER._replace(file_number=8, shard=4)), HeaderState.BLANK),
        (encode_file_header(HEADER._replace(shard=4)), HeaderState.DAMAGED),
    ):
        (tmp_path / log_name(7)).write_bytes(content)
        for other in ("!", "spare-7"):
            (tmp_path / other).write_bytes(content)
        (found,) = find_files(Disk(), str(tmp_path), 3, same_boot)
        header = HEADER if state is HeaderState.GOOD else FileHeader(3, 7, 0, 0)
        assert found == FoundFile(str(tmp_path / log_name(7)), 7, len(content), state, header)


# --- frames after damage ---


@contextmanager
def found_file(path: Path, content: bytes, header: FileHeader = HEADER) -> Iterator[tuple[FoundFile, int]]:
    path.write_bytes(encode_file_header(header) + content)
    fd = os.open(path, os.O_RDONLY)
    try:
        yield FoundFile(str(path), 7, path.stat().st_size, HeaderState.GOOD, header), fd
    finally:
        os.close(fd)


def content_of(wanted: list[tuple[str, bytes]], salt: int) -> bytes:
    """Bytes, whole frames, frames with a changed byte, and frames within the body of one that is whole or not."""
    content = b""
    for kind, data in wanted:
        position = HEADER.base_position + len(content)
        if kind == "noise":
            content += data
            continue
        inner = b"12345" + frame(data, position + FRAME_HEADER_BYTES + 5, salt)
        whole = frame(inner if "around" in kind else data, position, salt)
        content += whole if "whole" in kind else whole[:20] + bytes([whole[20] ^ 1]) + whole[21:]
    return content


# With the second, the magic of frames is zero, which overlaps itself.
@pytest.mark.parametrize("salt", [HEADER.salt, FRAME_MAGIC])
def test_the_frames_found_are_those_that_a_look_at_every_byte_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, salt: int
) -> None:
    wanted = [
        *(("whole", b"first"), ("noise", bytes(3)), ("whole", b""), ("noise", b"noise"), ("harmed", b"harmed")),
        *(("whole around", b"in a whole one"), ("harmed around", b"in a harmed one"), ("noise", bytes(4))),
        *(("noise", frame_magic(salt).to_bytes(4, "little")), ("whole", b"x" * 100), ("whole", b"last")),
    ]
    content = content_of(wanted, salt)
    header = HEADER._replace(salt=salt)
    whole = encode_file_header(header) + content

    def look_at_every_byte(offset: int, limit: int) -> Iterator[tuple[int, object]]:
        while offset < limit:
            head = verify(whole[:limit], offset, HEADER.base_position + offset - FILE_HEADER_BYTES, salt)
            if head is not None:
                yield offset, head
            offset += 1 if head is None else FRAME_HEADER_BYTES + head.body_len

    assert len(list(look_at_every_byte(FILE_HEADER_BYTES, len(whole)))) == 6
    with found_file(tmp_path / "log", content, header) as (file, fd):
        for skipped in (0, 1, 37):
            for cut in (0, 1, 35, 36, 37, 60, 130):
                offset, limit = FILE_HEADER_BYTES + skipped, len(whole) - cut
                expected = list(look_at_every_byte(offset, limit))
                for window_bytes in range(FRAME_HEADER_BYTES, 150):
                    monkeypatch.setattr(log_scan, "WINDOW_BYTES", window_bytes)
                    steps = list(good_frames(Disk(), fd, file, offset, limit))
                    assert [step for step in steps if step is not None] == expected
                    assert steps[-1] is None


def test_a_long_search_pauses_after_every_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_scan, "WINDOW_BYTES", 100)
    read: list[tuple[int, int]] = []

    class Noting(Disk):
        def pread(self, fd: int, length: int, offset: int) -> bytes:
            read.append((offset, length))
            return super().pread(fd, length, offset)

    with found_file(tmp_path / "log", bytes(300)) as (file, fd):
        assert list(good_frames(Noting(), fd, file, FILE_HEADER_BYTES, file.size)) == [None] * 4
    assert read == [(64, 100), (133, 100), (202, 100), (271, 93)], "each a header less a byte before the last one's end"


# --- large frames ---


def paused(steps: Steps[T]) -> tuple[int, T]:
    """How often the work paused, and its result."""
    pauses = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return pauses, end.value
        pauses += 1


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize(("split_at", "lengths"), [(0, []), (1, [1]), (PIECE_BYTES - 1, [PIECE_BYTES - 1]), (9**9, [])])
def test_a_large_body_comes_in_pieces_and_in_the_parts_that_are_asked_for(
    tmp_path: Path, extra: int, split_at: int, lengths: list[int]
) -> None:
    body = bytes(range(256)) * (2 * PIECE_BYTES // 256) + b"x" * extra
    asked: list[tuple[bytes, int]] = []

    def split(start: bytes, body_len: int) -> int:
        asked.append((start, body_len))
        return min(split_at, body_len)

    with found_file(tmp_path / "log", b"before" + frame(body, 1006) + b"after") as (file, fd):
        pauses, found = paused(read_large(Disk(), fd, file, FILE_HEADER_BYTES + 6, split))
        assert at_once(read_large(Disk(), fd, file, FILE_HEADER_BYTES + 6, None)) == body
    assert asked == [(body[:PIECE_BYTES], len(body))], "once, with the first piece"
    assert found == (SplitBody(body[: lengths[0]], body[lengths[0] :]) if lengths else body)
    # The first part ends within a piece, which is read again from there on.
    rest = len(body) - (lengths[0] if lengths else 0)
    assert pauses == len(lengths) + -(-rest // PIECE_BYTES)


@pytest.mark.parametrize("harmed_at", [16, 24, FRAME_HEADER_BYTES, -1])
def test_a_large_frame_with_a_changed_byte_is_none(tmp_path: Path, harmed_at: int) -> None:
    whole = bytearray(frame(bytes(PIECE_BYTES + 5), 1000))
    whole[harmed_at] ^= 1
    with found_file(tmp_path / "log", bytes(whole)) as (file, fd):
        assert at_once(read_large(Disk(), fd, file, FILE_HEADER_BYTES, None)) is None


def test_a_large_frame_of_a_file_that_was_cut_meanwhile_is_none(tmp_path: Path) -> None:
    with found_file(tmp_path / "log", frame(bytes(2 * PIECE_BYTES), 1000)) as (file, fd):
        os.truncate(tmp_path / "log", PIECE_BYTES)
        assert at_once(read_large(Disk(), fd, file, FILE_HEADER_BYTES, None)) is None


def test_a_frame_without_a_body_at_the_very_end_is_found(tmp_path: Path) -> None:
    with found_file(tmp_path / "log", frame(b"", 1000)) as (file, fd):
        assert list(good_frames(Disk(), fd, file, FILE_HEADER_BYTES, file.size)) == [(64, (1000, 0, 0)), None]

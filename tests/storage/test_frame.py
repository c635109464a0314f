"""Frames: what goes in comes out, and no bit can change unseen."""

from hypothesis import example, given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from topics.storage.wal.frame import (
    COPIED_BYTES_MAX,
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    DeferredFrame,
    FileHeader,
    decode_file_header,
    encode,
    encode_file_header,
    verify,
)
from topics.storage.wal.log_scan import read_window

u64 = st.integers(0, 2**64 - 1)
positions = st.integers(0, 2**62)


@given(body=st.binary(max_size=400), position=positions, synced_to=positions, salt=u64)
@example(body=b"", position=0, synced_to=0, salt=0)
def test_a_frame_comes_back_as_it_went_in(body: bytes, position: int, synced_to: int, salt: int) -> None:
    frame = b"".join(encode(body, position, synced_to, salt))

    head = verify(frame, 0, position, salt)

    assert head is not None
    assert head == (position, synced_to, len(body))
    assert len(frame) == FRAME_HEADER_BYTES + len(body)
    assert read_window(frame, position, salt) == ([(position + len(frame), body)], len(frame))


@given(body=st.binary(max_size=64), position=positions, salt=u64)
def test_every_flipped_bit_is_detected(body: bytes, position: int, salt: int) -> None:
    frame = b"".join(encode(body, position, position // 2, salt))
    room = bytes(300)  # so that a longer length does not fail for want of bytes alone

    for bit in range(len(frame) * 8):
        harmed = bytearray(frame + room)
        harmed[bit // 8] ^= 1 << bit % 8
        assert verify(bytes(harmed), 0, position, salt) is None, bit
        assert read_window(bytes(harmed), position, salt) == ([], 0), bit


@given(body=st.binary(max_size=64), position=positions, salt=u64, other=u64)
def test_a_frame_of_another_life_or_another_place_does_not_verify(
    body: bytes, position: int, salt: int, other: int
) -> None:
    frame = b"".join(encode(body, position, 0, salt))

    assert verify(frame, 0, position + 1, salt) is None
    assert other == salt or verify(frame, 0, position, other) is None


@given(body=st.binary(max_size=64), position=positions, salt=u64)
def test_a_frame_cut_anywhere_does_not_verify(body: bytes, position: int, salt: int) -> None:
    frame = b"".join(encode(body, position, 0, salt))

    assert all(verify(frame[:length], 0, position, salt) is None for length in range(len(frame)))


def test_every_flipped_bit_of_a_file_header_is_detected() -> None:
    header = FileHeader(shard=0, file_number=7, base_position=123456, salt=0xDEADBEEF)
    encoded = encode_file_header(header)

    assert len(encoded) == FILE_HEADER_BYTES
    assert decode_file_header(encoded) == header
    for bit in range(len(encoded) * 8):
        harmed = bytearray(encoded)
        harmed[bit // 8] ^= 1 << bit % 8
        assert decode_file_header(bytes(harmed)) is None, bit


class Parts:
    """A body that is made late, in pieces."""

    def __init__(self, *parts: bytes) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def buffers(self) -> list[bytes]:
        return list(self._parts)


@given(parts=st.lists(st.binary(max_size=100)), position=positions, synced_to=positions, salt=u64)
def test_a_frame_whose_body_is_made_late_has_the_same_bytes(
    parts: list[bytes], position: int, synced_to: int, salt: int
) -> None:
    late = DeferredFrame(Parts(*parts), position, synced_to, salt)
    assert b"".join(late.buffers()) == b"".join(encode(b"".join(parts), position, synced_to, salt))


def test_a_large_body_is_a_piece_of_its_own_and_not_copied() -> None:
    body = bytes(COPIED_BYTES_MAX + 1)
    start, rest = encode(body, 7, 5, 3)
    assert rest is body
    assert verify(start + rest, 0, 7, 3) == (7, 5, len(body))
    smaller = body[:-1]
    assert encode(smaller, 7, 5, 3)[1] is not smaller
    assert COPIED_BYTES_MAX == 262_144


def test_the_bytes_are_those_that_older_versions_wrote_and_read() -> None:
    frame = b"".join(encode(b"body", 0x1122, 0x33, 0x44))
    assert frame.hex() == "02524d31040000001ca424aca1bdadf222110000000000003300000000000000626f6479"
    header = encode_file_header(FileHeader(0, 9, 0x55, 0x66))
    assert header[:40].hex() == "57414c31010000000000000000000000090000000000000055000000000000006600000000000000"
    assert header[40:].hex() == "00000000000000000000000000000000beac3427508458a9"


def test_a_header_of_another_kind_or_version_is_not_a_header() -> None:
    header = encode_file_header(FileHeader(0, 9, 0x55, 0x66))
    for offset in (0, 4):
        start = bytearray(header[:56])
        start[offset] += 1
        assert decode_file_header(bytes(start) + xxh3_64_intdigest(start).to_bytes(8, "little")) is None

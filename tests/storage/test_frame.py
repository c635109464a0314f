"""Frames: what goes in comes out, and no bit can change unseen."""

from hypothesis import given
from hypothesis import strategies as st

from topics.storage.wal.frame import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
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

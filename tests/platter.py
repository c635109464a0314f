"""What a disk holds apart from what programs see: what is synced, what is not yet, and what a power failure leaves.

Per file the pages that were synced and the writes that came after, in order; per directory the entries that were synced
and the changes that came after. `after_power_loss` makes of a file what a machine may find when the power comes back.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

PAGE_BYTES = 4096
SECTOR_BYTES = 512

Mode = Literal["keep", "drop", "torn", "reorder"]


class Change(NamedTuple):
    """A change of a file that is not synced: bytes at an offset, or a new length."""

    kind: Literal["write", "truncate", "allocate"]
    offset: int
    data: bytes = b""


@dataclass
class PlatterFile:
    """A file apart from its names: what is durable, and what came after, in order."""

    pages: dict[int, bytes] = field(default_factory=dict)
    size: int = 0
    ops: list[Change] = field(default_factory=list)

    def sync(self, count: int) -> None:
        image = Image(dict(self.pages), self.size)
        for op in self.ops[:count]:
            image.apply(op)
        self.pages, self.size = image.pages, image.size
        del self.ops[:count]


class EntryChange(NamedTuple):
    """A change of a directory that is not synced; a node of None unlinks the name."""

    name: str
    node: PlatterFile | None
    renamed_from: str = ""


@dataclass
class PlatterDirectory:
    durable: dict[str, PlatterFile] = field(default_factory=dict)
    current: dict[str, PlatterFile] = field(default_factory=dict)
    changes: list[EntryChange] = field(default_factory=list)

    def change(self, entry: EntryChange) -> None:
        apply_entry(self.current, entry)
        self.changes.append(entry)


class Image:
    """The content of a file, by pages; pages of zeros are left out."""

    def __init__(self, pages: dict[int, bytes], size: int) -> None:
        self.pages = pages
        self.size = size

    def apply(self, op: Change) -> None:
        if op.kind == "write":
            self.write(op.offset, op.data)
        elif op.kind == "allocate":
            self.size = max(self.size, op.offset)
        else:
            self.truncate(op.offset)

    def write(self, offset: int, data: bytes) -> None:
        for number, start, piece in _pieces(offset, data):
            page = self.pages.get(number, bytes(PAGE_BYTES))
            self.pages[number] = page[:start] + piece + page[start + len(piece) :]
        self.size = max(self.size, offset + len(data))

    def truncate(self, length: int) -> None:
        for number in list(self.pages):
            kept = length - number * PAGE_BYTES
            if kept <= 0:
                del self.pages[number]
            elif kept < PAGE_BYTES:
                self.pages[number] = self.pages[number][:kept].ljust(PAGE_BYTES, b"\0")
        self.size = length

    def save(self, path: str) -> None:
        """Write the content as a file with holes, as most of a preallocated file is empty."""
        with open(path, "wb") as file:
            file.truncate(self.size)
            for number, page in self.pages.items():
                start = number * PAGE_BYTES
                file.seek(start)
                file.write(page[: max(0, self.size - start)])


def apply_entry(entries: dict[str, PlatterFile], entry: EntryChange) -> None:
    if entry.renamed_from:
        entries.pop(entry.renamed_from, None)
    if entry.node is None:
        entries.pop(entry.name, None)
    else:
        entries[entry.name] = entry.node


def _pieces(offset: int, data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Cut a write at the bounds of pages: (page number, start in it, bytes)."""
    at = 0
    while at < len(data):
        number, start = divmod(offset + at, PAGE_BYTES)
        piece = data[at : at + PAGE_BYTES - start]
        yield number, start, piece
        at += len(piece)


def after_power_loss(node: PlatterFile, mode: Mode, rng: random.Random) -> Image:
    image = Image(dict(node.pages), node.size)
    match mode:
        case "keep":
            for op in node.ops:
                image.apply(op)
        case "drop":
            pass
        case "torn":
            _tear(image, node.ops, rng)
        case "reorder":
            _reorder(image, node.ops, rng)
    return image


def _tear(image: Image, ops: list[Change], rng: random.Random) -> None:
    kept = rng.randint(0, len(ops))
    for op in ops[:kept]:
        image.apply(op)
    if kept < len(ops) and ops[kept].kind == "write":
        op = ops[kept]
        unit = rng.choice((SECTOR_BYTES, PAGE_BYTES))
        end = rng.randint(op.offset, op.offset + len(op.data)) // unit * unit
        image.write(op.offset, op.data[: max(0, end - op.offset)])


def _reorder(image: Image, ops: list[Change], rng: random.Random) -> None:
    """Lengths change in order, up to some point; what was written under a later length than that cannot be there."""
    lengths = [index for index, op in enumerate(ops) if op.kind != "write"]
    kept_lengths = lengths[: rng.randint(0, len(lengths))]
    cuts = [index for index in lengths if ops[index].kind == "truncate"]
    earliest = max((index + 1 for index in kept_lengths if index in cuts), default=0)
    latest = min((index for index in cuts if index not in kept_lengths), default=len(ops))
    for index in kept_lengths:
        image.apply(ops[index])
    writes = [op for op in ops[earliest:latest] if op.kind == "write"]
    unit = rng.choice((SECTOR_BYTES, PAGE_BYTES))
    units = {at // unit for op in writes for at in range(op.offset // unit * unit, op.offset + len(op.data), unit)}
    for number in sorted(units):
        start, end = number * unit, (number + 1) * unit
        touching = [op for op in writes if op.offset < end and op.offset + len(op.data) > start]
        for op in touching[: rng.randint(0, len(touching))]:
            first, last = max(start, op.offset), min(end, op.offset + len(op.data))
            image.write(first, op.data[first - op.offset : last - op.offset])

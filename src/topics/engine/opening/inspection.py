"""Reading a data directory without changing it: the state that a start would find, or that a repair would produce."""

from __future__ import annotations

from itertools import chain

from topics.engine.core.state import State
from topics.engine.opening.composition import OPS, new_state
from topics.engine.opening.repair import apply_what_fits
from topics.engine.opening.restore import restore
from topics.model.settings import Settings
from topics.storage.directory import DataDirectory
from topics.storage.disk import Disk
from topics.storage.pack import Packs
from topics.storage.snapshot import Snapshot, Snapshots
from topics.storage.steps import at_once
from topics.storage.viewing import LogView
from topics.storage.wal.sync_mark import noted_position


def load_snapshot(
    state: State, packs: Packs, snapshots: Snapshots, *, repair: bool = False, thorough: bool = False
) -> tuple[Snapshot | None, list[tuple[int, bytes]]]:
    """Fill an empty state with the newest snapshot; returns it, and positions and ops that come before the log."""
    snapshot = snapshots.load_newest(repair=repair, thorough=thorough)
    carried = at_once(restore(state, snapshot))
    live = (block.extent for topic in state.by_id.values() for block in topic.blocks)
    packs.adopt((extent for extent in live if extent is not None), keep=snapshots.kept_packs)
    return snapshot, carried


class Inspection:
    """Reads like recovery: newest snapshot, then the log. `disk` must be one that cannot write."""

    def __init__(self, disk: Disk, directory: DataDirectory, *, repair: bool = False, thorough: bool = False) -> None:
        previous = directory.previous
        cold_path = directory.cold_path if directory.cold_path and disk.exists(directory.cold_path) else None
        self.packs = Packs(disk, directory.packs_path, cold_path)
        try:
            self.state = new_state(Settings(), self.packs)
            self.snapshots = Snapshots(disk, directory.snapshots_path)
            snapshot, carried = load_snapshot(self.state, self.packs, self.snapshots, repair=repair, thorough=thorough)
            self.log = LogView(
                disk,
                directory.wal_path,
                snapshot.position if snapshot is not None else 0,
                same_boot=directory.same_boot,
                durable_to=max(previous.log_end, noted_position(disk, directory.wal_path)),
                repair=repair,
            )
            # Ops that a repair has to give up.
            self.given_up: list[str] = []
            for position, body in chain(carried, self.log):
                op = OPS.decode(body)
                if repair:
                    self.given_up += apply_what_fits(self.state, op, position)
                else:
                    self.state.apply(op, position)
            for feature in self.state.features:
                feature.replayed()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.packs.close()

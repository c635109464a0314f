"""Stores with routers, each put away when its test is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.in_memory import tmp_path
from tests.routers.rig import RoutedRig

__all__ = ["tmp_path"]

OpenRoutedRig = Callable[..., RoutedRig]


@pytest.fixture
def open_rig(tmp_path: Path) -> Iterator[OpenRoutedRig]:
    """Opens a rig by settings; every one gets a directory of its own."""
    rigs: list[RoutedRig] = []

    def open_one(**settings: Any) -> RoutedRig:
        settings.setdefault("wal_file_bytes", 1 << 20)  # a crash copies the files
        rigs.append(RoutedRig(tmp_path / f"data{len(rigs)}", **settings))
        return rigs[-1]

    yield open_one
    for rig in rigs:
        rig.abandon()


@pytest.fixture
def rig(open_rig: OpenRoutedRig) -> RoutedRig:
    return open_rig()

"""Hand-driven stores on disks that fail, each put away when its test is over."""

from tests.engine.conftest import open_rig
from tests.in_memory import tmp_path

__all__ = ["open_rig", "tmp_path"]

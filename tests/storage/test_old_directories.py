"""A data directory of any released version opens, and answers as the version that wrote it did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.storage.old_directories import BOOT, OTHER_BOOT, VERSIONS, answers, differences, recorded, records_of, unpack

WRITTEN_BY = sorted({path.name.rpartition("_")[0] for path in VERSIONS.glob("*.tar.xz")})
# How the directory was left, and the boot it is opened on.
ENDS = {"clean": ("clean", BOOT), "killed": ("killed", BOOT), "power": ("killed", OTHER_BOOT)}


def test_there_is_a_directory_of_the_first_version() -> None:
    assert "v0_1" in WRITTEN_BY


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("version", WRITTEN_BY)
def test_a_directory_of_an_older_version_answers_as_it_did_then(version: str, end: str, tmp_path: Path) -> None:
    kind, boot = ENDS[end]
    unpack(version, kind, tmp_path / "data")
    wanted = recorded(version, end)
    questions = [(answer["method"], answer["path"], answer["body"]) for answer in wanted["answers"]]
    found = answers(tmp_path / "data", boot, questions, wanted["asked_ms"])
    wrong = [line for was, now in zip(wanted["answers"], found, strict=True) for line in changes(was, now)]
    assert wrong == []


def changes(was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    asked = f"{was['method']} {was['path']}"
    if was["status"] != now["status"]:
        return [f"{asked}: status {now['status']}, was {was['status']}: {now['answer']}"]
    if "/export" in was["path"]:
        lines, now_lines = records_of(was["answer"]), records_of(now["answer"])
        return [] if lines == now_lines else [f"{asked}: records differ:\n{lines}\n{now_lines}"]
    return list(differences(json.loads(was["answer"]), json.loads(now["answer"]), asked))

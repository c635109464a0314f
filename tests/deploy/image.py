"""A Dockerfile without a container engine: its own steps, run one by one on an overlay over this machine.

    FROM           ─▶ upper layer: a copy of the stage that is named; lower layer: this machine with its Python
    RUN            ─▶ chroot into the overlay
    COPY           ─▶ into the upper layer
    the container  ─▶ the overlay read-only, the user of the file, a network of its own, a directory for each volume

What differs from a real image: the base is this machine instead of python:slim, so a package that only the base image
lacks is not missed. Needs root.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.deploy.parts import ROOT, program

PATH = f"{sys.base_prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The repository is not in the image: what it needs of it, it has copied.
HIDDEN = ("/work", "/home", str(ROOT))


class Step(NamedTuple):
    verb: str
    rest: str


def steps(text: str) -> list[Step]:
    joined = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE))
    return [Step(*line.split(None, 1)) for line in joined.splitlines() if line.strip()]


class Stage:
    """A stage as far as it has run: its files above those of the machine, and what the file says about running it."""

    def __init__(self, folder: Path, below: Stage | None) -> None:
        self.upper = folder / "files"
        folder.mkdir(parents=True)
        if below is None:
            self.upper.mkdir()
        else:
            # Not as a layer: the kernel wants no layer that lies within another, as this would within the machine.
            subprocess.run(["cp", "-a", below.upper, self.upper], check=True)
        self._work = folder / "work"
        self._work.mkdir()
        self.env: dict[str, str] = dict(below.env) if below else {"PATH": PATH}
        self.user = below.user if below else "0:0"
        self.workdir = below.workdir if below else "/"
        self.volumes: list[str] = list(below.volumes) if below else []
        self.entrypoint: list[str] = list(below.entrypoint) if below else []
        self.command: list[str] = []
        self.health: list[str] = []
        self.stop_signal = below.stop_signal if below else "SIGTERM"
        if below is None:
            self._reach_python()

    def _reach_python(self) -> None:
        """The Python of the tests is that of the image; a user other than root must be able to get to it."""
        for folder in (Path(sys.base_prefix), *Path(sys.base_prefix).parents):
            if folder != Path("/") and not folder.stat().st_mode & 0o005:
                (self.upper / folder.relative_to("/")).mkdir(parents=True, exist_ok=True)
                (self.upper / folder.relative_to("/")).chmod(0o755)

    def mounts(self, merged: Path, *, read_only: bool = False, binds: Mapping[str, Path] | None = None) -> str:
        """A script that puts the layers together, in a mount namespace of its own."""
        lines = [
            "set -eu",
            f"mkdir -p {merged}",
            f"mount -t overlay overlay -o lowerdir=/,upperdir={self.upper},workdir={self._work} {merged}",
            *([f"mount -o remount,ro {merged}"] if read_only else []),
            f"mount --rbind /dev {merged}/dev; mount --rbind /proc {merged}/proc",
            *(f"[ ! -d {merged}{path} ] || mount -t tmpfs -o ro tmpfs {merged}{path}" for path in HIDDEN),
            *(f"mount --bind {path} {merged}{place}" for place, path in (binds or {}).items()),
        ]
        return "\n".join(lines)

    def run(self, command: str, merged: Path) -> None:
        user = f"--userspec={self.user}"
        inside = f"cd {shlex.quote(self.workdir)} && {command}"
        script = f"{self.mounts(merged)}\nexec chroot {user} {merged} /bin/sh -euc {shlex.quote(inside)}"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TOPICS_", "PYTHON"))}
        done = subprocess.run(
            [program("unshare"), "--mount", "/bin/bash", "-c", script],
            env={**inherited, **self.env, "HOME": "/root"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

    def place(self, path: str) -> Path:
        return self.upper / (Path(self.workdir) / path).relative_to("/")


class Image:
    """The stages of a file up to the wanted one; `given` is copied into a stage before its first step."""

    def __init__(
        self,
        root: Path,
        folder: Path,
        target: str,
        arguments: Mapping[str, str],
        given: Mapping[str, Mapping[str, Path]],
    ) -> None:
        self._root = root
        self._given = given
        self._folder = folder
        self._stages: dict[str, Stage] = {}
        self._arguments = dict(arguments)
        self._ignored = (root / ".dockerignore").read_text().splitlines()
        self._current: Stage | None = None
        for verb, rest in self._wanted(steps((root / "Dockerfile").read_text()), target):
            getattr(self, f"_{verb.lower()}")(rest)
        self.stage = self._stages[target]

    def _wanted(self, all_steps: Sequence[Step], target: str) -> Iterator[Step]:
        """The steps of the target and of what it is made from, in the order of the file."""
        by_stage: dict[str, list[Step]] = {"": []}
        name = ""
        for step in all_steps:
            if step.verb == "FROM":
                name = step.rest.split()[-1]
                by_stage[name] = []
            by_stage[name].append(step)
        needed = {"", target}
        for name in reversed(by_stage):
            if name in needed:
                for verb, rest in by_stage[name]:
                    if verb == "FROM":
                        needed.add(rest.split()[0])
                    elif verb == "COPY" and rest.startswith("--from="):
                        needed.add(rest.split()[0].removeprefix("--from="))
        return (step for name, found in by_stage.items() if name in needed for step in found)

    @property
    def _now(self) -> Stage:
        assert self._current is not None
        return self._current

    def _filled(self, text: str) -> str:
        values = {**self._arguments, **(self._current.env if self._current else {})}
        return re.sub(r"\$\{?(\w+)\}?", lambda found: values.get(found[1], found[0]), text)

    def _arg(self, rest: str) -> None:
        name, _, default = rest.partition("=")
        self._arguments.setdefault(name, default)

    def _from(self, rest: str) -> None:
        base, _, name = rest.split()
        self._current = self._stages[name] = Stage(self._folder / name, self._stages.get(base))
        for place, path in self._given.get(name, {}).items():
            shutil.copytree(path, self._current.place(place))

    def _run(self, rest: str) -> None:
        self._now.run(self._filled(rest), self._folder / "merged")

    def _copy(self, rest: str) -> None:
        words = rest.split()
        if words[0].startswith("--from="):
            source, target = words[1:]
            taken = self._stages[words[0].removeprefix("--from=")].upper / Path(source).relative_to("/")
            shutil.copytree(taken, self._now.upper / Path(target).relative_to("/"), symlinks=True)
            return
        *names, target = words
        for name in names:
            self._copy_one(name, self._now.place(target) / (name if target == "./" else ""))

    def _copy_one(self, name: str, target: Path) -> None:
        assert {f"!{name}", f"!{Path(name).parts[0]}"} & set(self._ignored), f"{name} is not in the context"
        source = self._root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        else:
            shutil.copy(source, target)

    def _env(self, rest: str) -> None:
        for pair in shlex.split(self._filled(rest)):
            name, _, value = pair.partition("=")
            self._now.env[name] = value

    def _user(self, rest: str) -> None:
        self._now.user = rest

    def _workdir(self, rest: str) -> None:
        self._now.workdir = rest
        self._now.place(".").mkdir(parents=True, exist_ok=True)

    def _volume(self, rest: str) -> None:
        self._now.volumes.append(rest)

    def _stopsignal(self, rest: str) -> None:
        self._now.stop_signal = rest

    def _entrypoint(self, rest: str) -> None:
        self._now.entrypoint = json.loads(rest)

    def _cmd(self, rest: str) -> None:
        self._now.command = json.loads(rest)

    def _expose(self, rest: str) -> None:
        assert rest == self._now.env["TOPICS_PORT"]

    def _healthcheck(self, rest: str) -> None:
        self._now.health = json.loads(rest.partition("CMD ")[2])


class Container:
    """A process of an image: read-only files, a network of its own with nothing but loopback, a directory a volume."""

    def __init__(self, stage: Stage, folder: Path, volumes: Mapping[str, Path], env: Mapping[str, str]) -> None:
        self.stage = stage
        self.env = {**stage.env, **env}
        user, group = map(int, stage.user.split(":"))
        for path in volumes.values():
            if not path.exists():
                # What an engine does with a new volume: it takes the owner of the directory in the image.
                path.mkdir(parents=True)
                os.chown(path, user, group)
        merged = folder / "merged"
        mounts = stage.mounts(merged, read_only=True, binds=volumes)
        chroot = (
            f"exec chroot --userspec={stage.user} {merged} /bin/sh -c 'cd {stage.workdir} && exec \"$@\"' container"
        )
        start = f"{mounts}\nip link set lo up\n{chroot} {shlex.join([*stage.entrypoint, *stage.command])}"
        command = [program("unshare"), "--mount", "--net", "/bin/bash", "-c", start]
        with (folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def run(self, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
        """As `docker exec` does."""
        user, group = self.stage.user.split(":")
        enter = ["--target", str(self.process.pid), "--mount", "--net", "--root", "--wd", f"--setuid={user}"]
        inside = [program("nsenter"), *enter, f"--setgid={group}", "--", *command]
        return subprocess.run(inside, env={**self.env, **env}, capture_output=True, text=True)

    def healthy(self) -> bool:
        assert self.process.poll() is None, "the container has ended"
        return self.run(*self.stage.health).returncode == 0


@contextlib.contextmanager
def running(stage: Stage, folder: Path, volumes: Mapping[str, Path], env: Mapping[str, str]) -> Iterator[Container]:
    folder.mkdir(exist_ok=True)
    container = Container(stage, folder, volumes, env)
    try:
        yield container
    finally:
        container.process.kill()
        container.process.wait()

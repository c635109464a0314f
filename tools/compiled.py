"""The compiled variant: which modules mypyc compiles, and how; for `make fast` and for wheels (wheel_hook.py).

    src/topics ──▶ mypyc ──▶ C, a file for each module ──▶ cc, in parallel ──▶ topics__mypyc.….so   all of their code
                                                                              topics/http/….so, …   a shim for each

A shim lies beside its source and is imported instead. The sources themselves are never touched: an extension
module that is older than its source would be imported without a word, so everything is built in a copy.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCES: Final = ROOT / "src"
STAMP: Final = "compiled-from"
# Of `make fast`, below ROOT.
OBJECTS: Final = "build/objects"
INCLUDE: Final = sysconfig.get_paths()["include"]
SUFFIX: Final = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
# -O1 takes half the time of -O2; docs/adr/0012 has the figures. Hidden symbols are called without a detour.
FLAGS: Final = ("-O1", "-g0", "-w", "-fPIC", "-fwrapv", "-fvisibility=hidden", "-DNDEBUG", "-pthread")

# What a request, a record or a frame of the log passes through. Left out are modules of message classes only (msgspec
# compiles those itself), what runs once, and what others subclass or replace: errors, the disk.
MODULES: Final = {
    "model": "clock names timer_wheel requests/batch requests/nesting",
    "storage/wal": "frame handover log_file log_scan sync_mark syncer wal",
    "engine/log": "block body bulk copying deletion dropped_names idempotency part reading retention seq_ranges "
    "seq_spans topic waiters",
    "engine/log/on_disk": "cold",
    "engine/core": "appended commit_log engine feature fold in_flight job_admission listing multi_append "
    "op_table ops pending state",
    "engine/core/waiting": "cold_reader deadlines long_poll runner",
    "engine/live": "feeds",
    "engine/queues": "claims dead_letters due feature fold ops part places queue transfers unique_keys verbs "
    "waiting_claims",
    "engine/queues/limits": "limits rate tag_limits tag_line",
    "engine/groups": "consume fold group ops part verbs",
    "engine/routers": "fold forwarding ops part",
    "http": "budget closing connections content_coding frame_scanner limits received refusal reply_head request "
    "request_ids service target",
    "http/http1": "connection known_heads reader request states writer",
    "http/http2": "connection frames request stream writer",
    "http/loop": "pace slices tick watchdog",
    "api": "admission app auth call cors errors lifecycle replies route_family routes waiting",
    "api/logs": "requests",
    "api/v0": "queues records",
    "api/live": (
        "delivery following heartbeats sse topic_stream watch watch_session work_stream ws ws_connection ws_frames"
    ),
}


class CannotCompile(Exception):
    """There is no compiled variant here; the message says why."""


def module_paths() -> list[str]:
    """The compiled modules, as paths below `src`."""
    return sorted(f"topics/{folder}/{name}.py" for folder, names in MODULES.items() for name in names.split())


def c_compiler() -> list[str]:
    """The command that compiles C, if it works and Python's headers are there as well."""
    headers = Path(INCLUDE)
    if not (headers / "Python.h").is_file():
        version = ".".join(map(str, sys.version_info[:2]))
        raise CannotCompile(f"there is no Python.h in {headers} (Debian: apt-get install python{version}-dev)")
    commands = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    for command in map(str.split, commands):
        if shutil.which(command[0]):
            _run([*command, "-include", "Python.h", f"-I{INCLUDE}", "-fsyntax-only", "-x", "c", os.devnull])
            return command
    raise CannotCompile(
        f"there is no C compiler, neither {' nor '.join(commands)} (Debian: apt-get install gcc libc6-dev)"
    )


# --- compiling ---


class Build:
    """One run of both compilers. Objects are kept, by what they were made from, for the next run in the same folder."""

    def __init__(self, folder: Path) -> None:
        self._cc = c_compiler()
        self._folder = folder
        self._objects = folder / "objects"
        self._objects.mkdir(parents=True, exist_ok=True)
        self._made: set[Path] = set()

    def run(self, into: Path) -> None:
        """Put the extension modules into this folder, beside the copies of their sources."""
        extensions = self._generate()
        headers = hashlib.sha256(" ".join([*self._cc, *FLAGS, SUFFIX]).encode())
        for header in sorted((self._folder / "c").rglob("*.h")):
            headers.update(header.read_bytes())
        sources = sorted({source for _, sources in extensions for source in sources}, key=_size, reverse=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = dict(zip(sources, pool.map(lambda source: self._object(source, headers), sources), strict=True))
            links = [
                (into / f"{name.replace('.', '/')}{SUFFIX}", [objects[source] for source in sources])
                for name, sources in extensions
            ]
            for _ in pool.map(lambda link: self._link(*link), links):
                pass
        for old in set(self._objects.iterdir()) - self._made:
            old.unlink()

    def _generate(self) -> list[tuple[str, list[str]]]:
        """Check types and write C; the extension modules with their C files."""
        from mypyc.build import mypycify

        gc.disable()  # there is little garbage, and looking for it takes a third of the time
        os.chdir(SOURCES)
        # Silent about modules that are only imported: those that use an extra have errors where it is not installed, as
        # in the build of a wheel. The C is the same.
        options = ["--config-file=", f"--cache-dir={os.devnull}", "--follow-imports=silent"]
        made = mypycify(
            [*options, *module_paths()],
            multi_file=True,
            group_name="topics",
            target_dir=str(self._folder / "c"),
        )
        self._includes = sorted({f"-I{path}" for extension in made for path in extension.include_dirs})
        return [(extension.name, list(extension.sources)) for extension in made]

    def _object(self, source: str, headers: Any) -> Path:
        key = headers.copy()
        key.update(Path(source).read_bytes())
        made = self._objects / f"{Path(source).stem}-{key.hexdigest()[:32]}.o"
        self._made.add(made)
        if not made.exists():
            part = made.with_suffix(".part")
            _run([*self._cc, *FLAGS, f"-I{INCLUDE}", *self._includes, "-c", source, "-o", str(part)])
            part.rename(made)
        return made

    def _link(self, made: Path, objects: list[Path]) -> None:
        made.parent.mkdir(parents=True, exist_ok=True)
        _run([*self._cc, "-shared", "-pthread", *map(str, objects), "-o", str(made)])


def _size(path: str) -> int:
    return Path(path).stat().st_size


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotCompile(f"{' '.join(command[:2])} … failed:\n{done.stderr[-4000:]}")


# --- a copy beside the sources: make fast ---


def digest() -> str:
    """What a copy was made from: Python, the compiler's version, this file, the sources."""
    found = hashlib.sha256(sys.version.encode())
    for path in (ROOT / "pyproject.toml", Path(__file__), *sorted((SOURCES / "topics").rglob("*.py"))):
        found.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return found.hexdigest()


def is_current(tree: Path) -> bool:
    stamp = tree / STAMP
    return stamp.is_file() and stamp.read_text() == digest()


def make_tree(build: Path, tree: Path) -> None:
    """A copy of the package with its extension modules, to be put first on PYTHONPATH."""
    made_from = digest()
    fresh = build / "fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(SOURCES / "topics", fresh / "topics", ignore=shutil.ignore_patterns("__pycache__"))
    Build(build).run(fresh)
    (fresh / STAMP).write_text(made_from)
    shutil.rmtree(tree, ignore_errors=True)
    fresh.rename(tree)


def make_extensions(build: Path) -> None:
    """The extension modules alone, for a wheel; as far as the sources are the same, those of `make fast`."""
    tree = ROOT / "build" / "compiled"
    if not is_current(tree):
        if (ROOT / OBJECTS).is_dir():
            shutil.copytree(ROOT / OBJECTS, build / "objects")
        Build(build).run(build / "wheel")
        return
    for made in tree.rglob(f"*{SUFFIX}"):
        copy = build / "wheel" / made.relative_to(tree)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(made, copy)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="where to work and to leave what is made")
    parser.add_argument("--check", action="store_true", help="only say whether there is a C compiler that works")
    parser.add_argument("--wheel", action="store_true", help="only the extension modules, into BUILD/wheel")
    parser.add_argument("--current", action="store_true", help="print the compiled copy if it is that of these sources")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    tree = build / "compiled"
    if arguments.current:
        if is_current(tree):
            print(tree)
        return
    start_s = time.monotonic()
    try:
        if arguments.check:
            c_compiler()
            return
        if arguments.wheel:
            make_extensions(build)
            return
        if not is_current(tree):
            make_tree(build, tree)
    except CannotCompile as error:
        sys.exit(str(error))
    print(f"{tree} is that of these sources, after {time.monotonic() - start_s:.0f} s; `make run` serves with it")


if __name__ == "__main__":
    main()

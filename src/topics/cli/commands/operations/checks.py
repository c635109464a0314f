"""What `topics doctor` looks at: the machine, the disk and the settings, each with what to do about it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Literal, NamedTuple

from topics.api.auth import is_loopback
from topics.cli.spans import shown_bytes
from topics.http.descriptors import FILES_RESERVED, REFUSED_MAX
from topics.http.limits import HttpLimits
from topics.http.tls.certificate import tls_of
from topics.model.setting_types import WrongSetting
from topics.model.settings import Settings
from topics.model.variant import VARIANT

SYNCS = 20
SYNC_MS_GOOD, SYNC_MS_BAD = 5.0, 30.0
FREE_SHARE_MIN = 0.1
MEMORY_BASE_BYTES = 128 << 20
CERTIFICATE_DAYS_MIN = 30
CLOCK_SKEW_S_MAX = 2.0
# adjtimex(2): its state while nothing corrects the clock, and more room than its struct needs.
TIME_ERROR, TIMEX_BYTES = 5, 512
REMOTE = frozenset(("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse.sshfs", "afs"))

Severity = Literal["ok", "note", "warning", "error"]


class Finding(NamedTuple):
    severity: Severity
    subject: str
    text: str
    # empty if there is nothing to do
    todo: str = ""


def findings(settings: Settings) -> Iterator[Finding]:
    """All of them, as they are found; the directory of the data is written to, and left as it was."""
    yield variant()
    yield open_files(settings)
    yield memory(settings)
    yield clock()
    yield from data_directory(settings)
    yield from access(settings)
    yield from tls(settings)
    yield from limits(settings)


def variant() -> Finding:
    """An installation that could not compile is silent about it: pip shows what a build says with --verbose only."""
    if VARIANT == "compiled":
        return Finding("ok", "variant", "the hot modules are compiled")
    return Finding(
        "note",
        "variant",
        "pure Python: each request takes more processor time than with compiled modules",
        "install it with TOPICS_PURE=0, which needs a C compiler and says what is missing; in a checkout, make fast",
    )


def open_files(settings: Settings) -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.max_connections + FILES_RESERVED + REFUSED_MAX
    text = f"up to {hard} files may be open"
    if hard >= wanted:
        return Finding("ok", "open files", text)
    return Finding(
        "warning",
        "open files",
        f"{text}, {settings.max_connections} connections need {wanted}",
        "raise the hard limit (LimitNOFILE= of systemd, ulimits of a container) or lower TOPICS_MAX_CONNECTIONS",
    )


def memory(settings: Settings) -> Finding:
    bodies = HttpLimits().large_bodies_bytes_max
    wanted = MEMORY_BASE_BYTES + settings.hot_retain_bytes + bodies
    found = memory_limit_bytes()
    text = f"{shown_bytes(found)} of memory, up to {shown_bytes(wanted)} wanted"
    if found >= wanted:
        return Finding("ok", "memory", text)
    return Finding(
        "warning",
        "memory",
        f"{text} ({shown_bytes(settings.hot_retain_bytes)} for payloads, {shown_bytes(bodies)} for large bodies)",
        "lower TOPICS_HOT_RETAIN_BYTES and TOPICS_MAX_BODY_BYTES, or give it more memory",
    )


def memory_limit_bytes() -> int:
    """Of the machine, or of the container if that is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            return min(machine, int(file.read()))
    return machine


def clock() -> Finding:
    """Whether anything keeps the kernel's clock in time."""
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    except (OSError, AttributeError):
        state = -1
    if state < 0:
        return Finding("note", "clock", "whether it is synchronised cannot be asked here")
    if state == TIME_ERROR:
        return Finding(
            "warning",
            "clock",
            "it is not synchronised; $ts, TTLs and tokens follow it",
            "run chrony or systemd-timesyncd, on the host if this is a container",
        )
    return Finding("ok", "clock", "it is synchronised")


# --- the disk ---


def data_directory(settings: Settings) -> Iterator[Finding]:
    path = existing(settings.data_dir)
    yield file_system(path)
    yield free_space(path)
    try:
        yield from disk_speed(path)
    except OSError as error:
        yield Finding(
            "error",
            "data directory",
            f"{path} cannot be written: {os.strerror(error.errno or 0).lower()}",
            "give it to the user that runs the server, or choose another by TOPICS_DATA_DIR",
        )
    if os.path.isdir(settings.data_dir) and os.stat(settings.data_dir).st_mode & 0o007:
        yield Finding(
            "note",
            "data directory",
            f"other users of the machine can enter {settings.data_dir}",
            f"chmod o= {settings.data_dir}: records are not encrypted",
        )


def existing(path: str) -> str:
    """The directory, or the one in which it would be made."""
    path = os.path.abspath(path)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def file_system(path: str) -> Finding:
    kind = file_system_of(path)
    if kind in REMOTE:
        return Finding(
            "error",
            "file system",
            f"{path} is on {kind}: locks and syncs over a network are not what the log relies on",
            "use a local disk or a block device",
        )
    if kind == "tmpfs":
        return Finding("warning", "file system", f"{path} is in memory: a restart loses it", "use a disk")
    if kind == "overlay":
        return Finding(
            "warning", "file system", f"{path} is a layer of a container and is removed with it", "mount a volume there"
        )
    return Finding("ok", "file system", f"{path} is on {kind or 'a local file system'}")


def file_system_of(path: str) -> str:
    """The type of the mount that holds a path; empty if it cannot be told."""
    best, kind = "", ""
    real = os.path.realpath(path)
    with contextlib.suppress(OSError), open("/proc/self/mounts") as mounts:
        for line in mounts:
            _, place, found, *_ = line.split(" ")
            place = place.replace("\\040", " ")
            inside = real == place or real.startswith(place.rstrip("/") + "/")
            if inside and len(place) >= len(best):
                best, kind = place, found
    return kind


def free_space(path: str) -> Finding:
    found = os.statvfs(path)
    free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    text = f"{shown_bytes(free)} of {shown_bytes(size)} are free"
    if free < FREE_SHARE_MIN * size:
        return Finding(
            "warning",
            "disk space",
            text,
            "free some, or set caps and TTLs for topics; a full disk refuses writes (507)",
        )
    return Finding("ok", "disk space", text)


def disk_speed(path: str) -> Iterator[Finding]:
    """Syncs of small writes to one file, as the log does them; and whose clock the files get their times from."""
    times_ms: list[float] = []
    with tempfile.TemporaryFile(dir=path) as file:
        for _ in range(SYNCS):
            os.write(file.fileno(), b"\0" * 4096)
            began_s = time.perf_counter()
            os.fdatasync(file.fileno())
            times_ms.append((time.perf_counter() - began_s) * 1000)
        skew_s = os.fstat(file.fileno()).st_mtime - time.time()
    usual_ms, worst_ms = statistics.median(times_ms), max(times_ms)
    text = f"a sync takes {usual_ms:.1f} ms, at worst {worst_ms:.1f} ms"
    if usual_ms > SYNC_MS_BAD:
        yield Finding(
            "warning",
            "disk speed",
            text,
            "appends to fsync topics wait that long: use a faster disk, or durability disk where 100 ms may be lost",
        )
    elif usual_ms > SYNC_MS_GOOD:
        yield Finding("note", "disk speed", text, "batch appends to fsync topics; an SSD needs below 2 ms")
    else:
        yield Finding("ok", "disk speed", text)
    if abs(skew_s) > CLOCK_SKEW_S_MAX:
        yield Finding(
            "warning",
            "clock",
            f"times of files differ from the clock by {skew_s:+.1f} s",
            "the disk belongs to another machine: use a local one",
        )


# --- settings ---


def access(settings: Settings) -> Iterator[Finding]:
    loopback = is_loopback(settings.host)
    if not settings.api_keys and not loopback:
        refused = f"it will not start on {settings.host} without keys"
        text = "everyone who reaches it may do everything" if settings.allow_insecure_no_auth else refused
        yield Finding("error", "keys", text, "set TOPICS_API_KEYS")
    elif not settings.api_keys:
        yield Finding("note", "keys", "there are none: every program on this machine may do everything")
    else:
        yield Finding("ok", "keys", f"{len(settings.api_keys)} set")
    if not loopback and settings.tls_cert is None:
        yield Finding(
            "warning",
            "TLS",
            f"{settings.host} is served unencrypted",
            "set TOPICS_TLS_CERT and TOPICS_TLS_KEY, or let only a proxy with TLS reach it",
        )


def tls(settings: Settings) -> Iterator[Finding]:
    try:
        found = tls_of(settings)
    except WrongSetting as error:
        todo = "set both TOPICS_TLS_CERT and TOPICS_TLS_KEY, to a pair that fits and is in date, or neither"
        yield Finding("error", "TLS", f"it will not start: {error.message}", todo)
        return
    if found is None or settings.tls_key is None:
        return
    text = f"the certificate is valid for {found.days_left:.0f} more days"
    if found.days_left < CERTIFICATE_DAYS_MIN:
        yield Finding("warning", "TLS", text, "renew it, then send SIGHUP")
    else:
        yield Finding("ok", "TLS", text)
    if os.stat(settings.tls_key).st_mode & 0o004:
        text = f"every user of the machine can read {settings.tls_key}"
        yield Finding("warning", "TLS", text, f"chmod o= {settings.tls_key}")


def limits(settings: Settings) -> Iterator[Finding]:
    """Settings that are legal, and bite later."""
    if settings.max_body_bytes * 4 > memory_limit_bytes():
        text = f"a body of {shown_bytes(settings.max_body_bytes)} takes a quarter of the memory"
        yield Finding("warning", "max_body_bytes", text, "lower TOPICS_MAX_BODY_BYTES")
    if settings.checkpoint_bytes > 1 << 30:
        text = f"a start may have to replay {shown_bytes(settings.checkpoint_bytes)} of log"
        yield Finding("note", "checkpoint_bytes", text, "lower TOPICS_CHECKPOINT_BYTES if a restart must be quick")
    if settings.max_record_bytes > settings.max_body_bytes:
        text = "larger records than max_body_bytes never arrive"
        yield Finding("note", "max_record_bytes", text, "raise TOPICS_MAX_BODY_BYTES")
    if settings.max_total_bytes == 0:
        text = "nothing limits what all topics keep together"
        yield Finding("note", "max_total_bytes", text, "set TOPICS_MAX_TOTAL_BYTES, or caps and TTLs for every topic")

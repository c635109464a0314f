"""A Python for Spark's processes that starts at once: a fork of one that has imported what they import.

    Java ─ starts ─▶ PLACE/python -m pyspark.… ── arguments, environment, descriptors ─▶ launcher ─ fork ─▶ the module
                        ends as it ended ◀────────── its pid, and the wait status ─────────┘

Every stream starts such a process, and so does every task that no idle one takes; the imports of each are 0.6 s of
processor time. For the session that tests share: what a test kills, it starts as users do.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.launching import LENGTH, ROOT, exactly, keep

# What Spark starts by `python -m`, or imports in a fork of pyspark.daemon; then, what the connector needs.
STARTED = (
    "pyspark.daemon",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
)
NEEDED = ("pyspark.worker", "pyspark_topics", "topics_spark.sink.data_sink", "topics_spark.source.stream")
# Without `site`, it starts in 15 ms.
PROGRAM = """\
#!{python} -IS
import os, signal, socket, struct, sys
if sys.argv[1] != "-m":
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
launcher = socket.socket(socket.AF_UNIX)
launcher.connect({path!r})
request = repr((sys.argv[2:], dict(os.environ), os.getcwd())).encode()
socket.send_fds(launcher, [struct.pack("!I", len(request))], [0, 1, 2])
launcher.sendall(request)
number = lambda: struct.unpack("!i", launcher.recv(4))[0]
pid = number()
signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
code = os.waitstatus_to_exitcode(number())
os._exit(code if code >= 0 else 128 - code)
"""
MODULE = """\
import os, runpy, sys
sys.path[:0] = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
sys.modules.pop(sys.argv[0], None)
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@contextlib.contextmanager
def quick_python() -> Iterator[Path]:
    """The program, for PYSPARK_PYTHON."""
    with tempfile.TemporaryDirectory(prefix="quick-python-") as place, socket.socket(socket.AF_UNIX) as listener:
        path = f"{place}/launcher"
        program = Path(place) / "python"
        program.write_text(PROGRAM.format(python=sys.executable, path=path))
        program.chmod(0o755)
        listener.bind(path)
        listener.listen(64)
        launcher = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.quick_python", str(listener.fileno())],
            cwd=ROOT,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # threads do not survive a fork
            stdin=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
        )
        try:
            yield program
        finally:
            launcher.terminate()
            launcher.wait()


# --- in the launcher ---


def serve(listener: socket.socket) -> None:
    """A fork for each request, until it is terminated."""
    for name in (*STARTED, *NEEDED):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        caller, _ = listener.accept()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        with caller:
            prefix, descriptors, _, _ = socket.recv_fds(caller, LENGTH.size, 3)
            arguments, env, cwd = ast.literal_eval(exactly(caller, LENGTH.unpack(prefix)[0]).decode())
            if not os.fork():
                listener.close()
                keep({"argv": arguments, "env": env, "cwd": cwd, "code": MODULE}, [*descriptors, caller.detach()])
            for descriptor in descriptors:
                os.close(descriptor)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))

"""Run pytest; if up to five tests fail, run those once more, one after the other, and name those that pass then.

    python .ci/once_more.py [arguments of pytest]

A test that passes alone after it failed is a defect of the test or of the product, but no reason to stop everybody:
it is named under FLAKY, and the run counts as passed. The run fails if a test fails again, if more than five failed,
and for whatever else pytest ends with.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS_FAILED = 1
RERUN_MAX = 5
WIDTH = 100
ALONE = ["--processes", "0", "--last-failed", "--last-failed-no-failures", "none"]


def main(arguments: list[str]) -> int:
    # A cache of its own: what failed in an earlier run, or in one beside this, is not run here.
    with tempfile.TemporaryDirectory(prefix="topics-tests-") as cache:
        command = [sys.executable, "-m", "pytest", *arguments, "-o", f"cache_dir={cache}"]
        code = run(command)
        failed = failures(cache)
        if code != TESTS_FAILED or not failed:
            return code
        if len(failed) > RERUN_MAX:
            print(f"{len(failed)} tests failed: those are too many to run again (at most {RERUN_MAX})", flush=True)
            return code
        print(f"\nonce more, one after the other: {', '.join(failed)}", flush=True)
        code = run([*command, *ALONE])
        again = failures(cache)
    flaky = [name for name in failed if name not in again]
    if flaky:
        heading = f" FLAKY: {len(flaky)} failed first and passed then (a defect: fix it) "
        print(f"\n{heading:!^{WIDTH}}")
        print("\n".join(f"FLAKY: {name} (a defect: fix it)" for name in flaky))
        print("!" * WIDTH, flush=True)
    return code or (TESTS_FAILED if again else 0)


def run(command: list[str]) -> int:
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode


def failures(cache: str) -> list[str]:
    """The tests that failed when they ran last."""
    found = Path(cache) / "v" / "cache" / "lastfailed"
    return list(json.loads(found.read_text())) if found.exists() else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What holds for every test: which environment it has, how hard the property tests look, what comes first.

Few examples by default, many and fresh ones with HYPOTHESIS_PROFILE=soak, a third of them with `check` (`make check`
and the compiled tests), hardly any with `few` (tests/mutation).
"""

import gc
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.serving import ServerProcess, serving
from topics.model.variant import VARIANT

pytest_plugins = ["tests.parallel"]

settings.register_profile(
    "fast", deadline=None, print_blob=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", settings.get_profile("fast"), derandomize=True)
settings.register_profile("check", settings.get_profile("ci" if os.environ.get("CI") else "fast"), max_examples=20)
settings.register_profile("few", settings.get_profile("ci"), max_examples=10)
settings.register_profile("soak", settings.get_profile("fast"), max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "fast"))

# What a developer's shell has set is for other programs, also for those that the tests start.
STRANGE_PREFIXES = ("TOPICS_", "SPARK_", "PYSPARK_")
STRANGE = {
    *("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "TTY_COMPATIBLE"),
    *("PYTHONASYNCIODEBUG", "PYTHONDEVMODE", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONWARNINGS"),
    *("BASH_ENV", "CDPATH", "CURL_HOME", "PAGER"),
}
for name in list(os.environ):
    strange = name.upper() in STRANGE or name.startswith(STRANGE_PREFIXES)
    if strange and name != "TOPICS_TORTURE":
        del os.environ[name]
os.environ["LC_ALL"] = "C.UTF-8"

# A shell that runs the tests in the background ignores SIGINT, and every child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Collecting makes objects by the hundred thousand and no garbage; they are there to the end, and no later look for
# garbage has to pass over them.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with tests that may take long come first: of several workers, none is left with them at the end."""
    seconds: defaultdict[Path, float] = defaultdict(float)
    for item in items:
        if marker := item.get_closest_marker("timeout"):
            seconds[item.path] = max(seconds[item.path], marker.args[0])
    items.sort(key=lambda item: -seconds[item.path])


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One for all tests that need nothing special: no keys, on loopback, all defaults. They use names of their own."""
    with serving(tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    ServerProcess.known[:] = [server for server in ServerProcess.known if server.process.returncode is None]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[Any]:
    """A failed test shows what its servers said, and whether one of them had ended."""
    report = yield
    if report.failed:
        report.sections += [server.account() for server in ServerProcess.known]
    return report


def pytest_report_header() -> str:
    return f"topics: {VARIANT}"


def pytest_configure() -> None:
    """`make test-compiled` says what it means to test."""
    wanted = os.environ.get("VARIANT", VARIANT)
    if wanted != VARIANT:
        raise pytest.UsageError(f"the tests are meant for the {wanted} variant, and this is the {VARIANT} one")
    if VARIANT == "compiled":
        skip_what_replaces_functions()


def skip_what_replaces_functions() -> None:
    """A compiled module would not notice that a function of it was replaced."""
    replace = pytest.MonkeyPatch.setattr

    def checked(self: pytest.MonkeyPatch, target: Any, *arguments: Any, **options: Any) -> None:
        if is_compiled(target) and not isinstance(arguments[-1], int | float):
            pytest.skip("replaces a function of a compiled module")
        replace(self, target, *arguments, **options)

    pytest.MonkeyPatch.setattr = checked


def is_compiled(target: object) -> bool:
    """A module, a class or an instance of one, or a name with the dots of its module."""
    if isinstance(target, str):
        modules = [target.rsplit(".", dots)[0] for dots in range(1, 3)]
    elif isinstance(target, ModuleType):
        modules = [target.__name__]
    else:
        modules = [(target if isinstance(target, type) else type(target)).__module__]
    files = [getattr(sys.modules.get(name), "__file__", None) or "" for name in modules]
    return any(name.startswith("topics.") for name in modules) and any(file.endswith(".so") for file in files)

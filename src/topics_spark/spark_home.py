"""A SPARK_HOME whose Python is the installed package, for Spark on this machine.

Spark starts its Python processes with a zip of pyspark before everything else. A zip has no byte code, so that each of
them compiles what it imports again, for longer than it then works. In this home there is no zip.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from topics_spark.java import cache_dir

# Of the installed package, what Spark looks for in its home.
PARTS: Final = ("bin", "conf", "data", "jars", "sbin")


def unzipped_home(environ: Mapping[str, str]) -> Path:
    """Links to the parts of the installed Spark; made once."""
    import pyspark

    installed = installed_home()
    name = hashlib.sha256(f"{installed} {pyspark.__version__}".encode()).hexdigest()[:12]
    place = cache_dir(environ) / f"spark-{pyspark.__version__}-{name}"
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f"{place.name}.", dir=place.parent))
    fresh.chmod(0o755)
    for part in PARTS:
        if (installed / part).exists():
            (fresh / part).symlink_to(installed / part)
    try:
        fresh.rename(place)
    except OSError:
        # Another process was quicker, with the same links.
        for link in fresh.iterdir():
            link.unlink()
        fresh.rmdir()
    return place


def installed_home() -> Path:
    """That of the installed package."""
    import pyspark

    return Path(pyspark.__file__).resolve().parent


def is_own_python(environ: Mapping[str, str]) -> bool:
    """Whether Spark's processes run the Python of this one, which has the package."""
    chosen = environ.get("PYSPARK_PYTHON")
    return chosen is None or chosen == sys.executable

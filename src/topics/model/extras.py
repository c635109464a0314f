"""Extras of this package: the command that installs one, from where the package itself came from."""

from __future__ import annotations

import os
import sys


def install_command(extra: str) -> str:
    """For hints: pip may know no other source than the checkout or the file that this installation is from."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    if os.path.exists(os.path.join(root, "pyproject.toml")):
        pip = ".venv/bin/pip" if os.path.realpath(sys.prefix) == os.path.join(root, ".venv") else "pip"
        return f"{pip} install -e '.[{extra}]' in {root}"
    if source := _installed_from():
        return f"pip install 'topicsd[{extra}] @ {source}'"
    return f"pip install 'topicsd[{extra}]'"


def _installed_from() -> str:
    """The file that pip installed this package from; empty if that was an index, or if it is gone."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote, urlsplit

    try:
        url = str(json.loads(distribution("topicsd").read_text("direct_url.json") or "{}").get("url", ""))
    except (PackageNotFoundError, ValueError):
        return ""
    return url if os.path.exists(unquote(urlsplit(url).path)) else ""

"""The clients of others that `make` installs aside: where they are, and what happens without them."""

import os
import site
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
# boto3, aws-cli and Celery as they are now; the last ones that used the older protocol; the SDK for Node.
NEW = ROOT / ".venv" / "sqs"
OLD = ROOT / ".venv" / "sqs-query"
NODE = ROOT / ".venv" / "sqs-node"
IN_CI = os.environ.get("CI", "false") not in ("false", "0", "")

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_DEFAULT_REGION": "us-east-1"}


def need(path: Path) -> Path:
    if not path.exists():
        assert not IN_CI, f"{path} is missing: make {path.relative_to(ROOT)}"
        pytest.skip(f"make {path.relative_to(ROOT)} installs what this needs")
    return path


def import_boto() -> tuple[ModuleType, ModuleType]:
    """boto3 and botocore, from their own directory and after everything else."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site.addsitedir(str(need(NEW) / "lib" / version / "site-packages"))
    import boto3  # pyright: ignore[reportMissingImports]
    import botocore  # pyright: ignore[reportMissingImports]

    return boto3, botocore


def boto3_client(port: int, key_id: str = "any", secret: str = "any", **options: Any) -> Any:
    boto3, _ = import_boto()
    return boto3.client(
        "sqs",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id=key_id,
        aws_secret_access_key=secret,
        **options,
    )


def environ(port: int, **more: str) -> dict[str, str]:
    """Of a client that is a process: nothing of the machine's own AWS configuration."""
    usual = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return {
        **usual,
        **CREDENTIALS,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_PAGER": "",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        **more,
    }

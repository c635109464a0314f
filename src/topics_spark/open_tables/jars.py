"""Jars that Spark does not bring along: those of Delta, Iceberg and S3, by a short name or by their coordinates."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from topics_spark.errors import ConnectorError

# The newest release for each Spark, as of November 2026; other versions are given by their coordinates.
DELTA: Final[Mapping[str, str]] = {
    "4.1": "io.delta:delta-spark_4.1_2.13:4.4.0",
    "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0",
}
ICEBERG: Final[Mapping[str, str]] = {
    "4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
}
S3A: Final = "org.apache.hadoop:hadoop-aws"
EXTENSIONS: Final = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}
# The catalog whose tables are the directories below `--tables`.
CATALOG: Final = "lake"


class NoJars(ConnectorError):
    """There is no release of a package for this Spark."""


def spark_settings(
    packages: Sequence[str], tables_dir: str | None = None, conf: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The settings of a session that uses these packages; `conf` has what was set by hand, and wins or is added to."""
    given = dict(conf or {})
    coordinates = [coordinates_of(package) for package in packages]
    if "spark.jars.packages" in given:
        coordinates += given["spark.jars.packages"].split(",")
    formats = [name for name in EXTENSIONS if any(_brings(name, each) for each in coordinates)]
    if not coordinates:
        return given
    found = {"spark.jars.packages": ",".join(dict.fromkeys(coordinates))}
    if formats:
        extensions = [
            *filter(None, given.get("spark.sql.extensions", "").split(",")),
            *(EXTENSIONS[each] for each in formats),
        ]
        found["spark.sql.extensions"] = ",".join(dict.fromkeys(extensions))
    usual: dict[str, str] = {}
    if any(each.startswith(f"{S3A}:") for each in coordinates):
        # For encryption by the client alone, and not to be had without further repositories.
        usual["spark.jars.excludes"] = "software.amazon.encryption.s3:amazon-s3-encryption-client-java"
    if "delta" in formats:
        usual["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        # Fifty tasks for the log of every table are for large clusters.
        usual["spark.databricks.delta.snapshotPartitions"] = "4"
    if "iceberg" in formats and tables_dir is not None:
        catalog = f"spark.sql.catalog.{CATALOG}"
        usual |= {
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "hadoop",
            f"{catalog}.warehouse": tables_dir,
            # Sessions would see tables as they were half a minute ago.
            f"{catalog}.cache-enabled": "false",
        }
    return {**usual, **given, **found}


def coordinates_of(package: str) -> str:
    """`delta`, `iceberg` and `s3a` are those that fit the installed Spark; everything else is taken as it is."""
    if package == "s3a":
        return f"{S3A}:{hadoop_version()}"
    if package not in EXTENSIONS:
        if package.count(":") != 2:
            known = ", ".join((*EXTENSIONS, "s3a"))
            raise NoJars(f"--packages {package}: must be {known}, or coordinates like {DELTA['4.1']}")
        return package
    version = spark_version()
    known = DELTA if package == "delta" else ICEBERG
    if version not in known:
        newest = max(known)
        raise NoJars(
            f"--packages {package}: no release for Spark {version} is known; "
            f"install Spark {newest} (pip install 'pyspark=={newest}.*'), or give the coordinates of a newer release"
        )
    return known[version]


def _brings(name: str, coordinates: str) -> bool:
    return re.search(rf":{name}-spark", coordinates) is not None


def spark_version() -> str:
    """The first two numbers of the installed one."""
    import pyspark

    return ".".join(pyspark.__version__.split(".")[:2])


def hadoop_version() -> str:
    """The jars of a file system must be of the Hadoop that Spark brings along."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    found = [re.fullmatch(r"hadoop-client-api-(.+)\.jar", jar.name) for jar in jars.glob("hadoop-client-api-*.jar")]
    versions = [match[1] for match in found if match is not None]
    if not versions:
        raise NoJars(f"--packages s3a: {jars} has no Hadoop; give the coordinates, {S3A}:VERSION")
    return versions[0]

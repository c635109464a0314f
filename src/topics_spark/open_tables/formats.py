"""The two formats behind one face: create, take over, extend, append, merge, replace, compact and read a table.

Everything is done by the format's own means. A batch is written under the name of the table's owner and a version, and
the format itself refuses it a second time, from any writer: Delta by a transaction of its log, Iceberg by the id
of a write that is staged first and then published.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from pyspark.sql.functions import lit

from topics_spark.errors import ConnectorError
from topics_spark.open_tables.jars import CATALOG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

Format = Literal["parquet", "delta", "iceberg"]
OWNER: Final = "topics.owner"
VERSION: Final = "topics.version"
# What only the one and only the other has in its directory.
DELTA_LOG: Final = "_delta_log"
ICEBERG_HINT: Final = "metadata/version-hint.text"


class JarsMissing(ConnectorError):
    """Spark was started without the jars of a format or of a file system."""


def format_at(spark: SparkSession, place: str) -> Format:
    """Which one a directory has; Parquet if it has none of the others."""
    if exists(spark, f"{place}/{DELTA_LOG}"):
        return "delta"
    return "iceberg" if exists(spark, f"{place}/{ICEBERG_HINT}") else "parquet"


def exists(spark: SparkSession, place: str) -> bool:
    if "://" not in place:
        return Path(place).exists()
    java = cast("Any", spark)
    path = java._jvm.org.apache.hadoop.fs.Path(place)
    try:
        return bool(path.getFileSystem(java._jsparkSession.sessionState().newHadoopConf()).exists(path))
    except Exception as error:
        if "No FileSystem for scheme" not in str(error) and "S3AFileSystem not found" not in str(error):
            raise
        raise JarsMissing(f"{place}: Spark was started without the jars of this store; add --packages s3a") from None


def admin(spark: SparkSession) -> SparkSession:
    """A session for statements about a table by its path, which the sessions of definitions refuse."""
    session = spark.newSession()
    session.conf.set("spark.sql.runSQLOnFiles", "true")
    return session


class OpenTable:
    """A table by its place below the directory of tables."""

    name: str

    def __init__(self, spark: SparkSession, place: str) -> None:
        self.place = place
        self._spark = spark

    def sql(self, text: str) -> list[Any]:
        return self._spark.sql(text).collect()

    def create(
        self, schema: StructType, owner: str, partition_by: Sequence[str] = (), cluster_by: Sequence[str] = ()
    ) -> None:
        columns = ", ".join(f"{quoted(each.name)} {ddl(self._spark, each.dataType)}" for each in schema.fields)
        parts = f" PARTITIONED BY ({names(partition_by)})" if partition_by else self._clustered(cluster_by)
        self.sql(
            f"CREATE TABLE IF NOT EXISTS {self.name} ({columns}) USING {self.format}{parts} "
            f"TBLPROPERTIES ({self._properties(owner)})"
        )

    def _properties(self, owner: str) -> str:
        return f"'{OWNER}' = {text(owner)}"

    @property
    def format(self) -> str:
        raise NotImplementedError

    def _clustered(self, cluster_by: Sequence[str]) -> str:
        raise NotImplementedError

    def exists(self) -> bool:
        raise NotImplementedError

    def owner(self) -> str | None:
        found = {row["key"]: row["value"] for row in self.sql(f"SHOW TBLPROPERTIES {self.name}")}
        return found.get(OWNER)

    def take(self, owner: str) -> None:
        self.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ({self._properties(owner)})")

    def read(self) -> DataFrame:
        return self._spark.table(self.name)

    def schema(self) -> StructType:
        return self.read().schema

    def extend(self, columns: Sequence[tuple[str, DataType]]) -> None:
        added = ", ".join(f"{quoted(name)} {ddl(self._spark, kind)}" for name, kind in columns)
        self.sql(f"ALTER TABLE {self.name} ADD COLUMNS ({added})")

    def is_written(self, owner: str, version: int) -> bool:
        """Whether the batch is in the table; False where writing it again adds nothing."""
        raise NotImplementedError

    def append(self, rows: DataFrame, owner: str, version: int) -> None:
        raise NotImplementedError

    def replace(self, rows: DataFrame, owner: str, version: int) -> None:
        raise NotImplementedError

    def merge(self, rows: DataFrame, statement: str, owner: str, version: int) -> None:
        """Run a MERGE, which names its source, a view of these rows' session."""
        with settings(rows.sparkSession, {"spark.sql.runSQLOnFiles": "true", **self._of_batch(owner, version)}):
            rows.sparkSession.sql(statement).collect()

    def _of_batch(self, owner: str, version: int) -> Mapping[str, str]:
        raise NotImplementedError

    def compact(self, cluster_by: Sequence[str]) -> tuple[int, int]:
        """Files that were replaced, and files that replace them."""
        raise NotImplementedError


class DeltaTable(OpenTable):
    def __init__(self, spark: SparkSession, place: str) -> None:
        super().__init__(spark, place)
        self.name = f"delta.{quoted(place)}"

    @property
    def format(self) -> str:
        return "delta"

    def _clustered(self, cluster_by: Sequence[str]) -> str:
        return f" CLUSTER BY ({names(cluster_by)})" if cluster_by else ""

    def exists(self) -> bool:
        return exists(self._spark, f"{self.place}/{DELTA_LOG}")

    def read(self) -> DataFrame:
        return self._spark.read.format("delta").load(self.place)

    def is_written(self, owner: str, version: int) -> bool:
        # The log refuses a transaction that it has.
        del owner, version
        return False

    def append(self, rows: DataFrame, owner: str, version: int) -> None:
        self._write(rows, "append", owner, version)

    def replace(self, rows: DataFrame, owner: str, version: int) -> None:
        self._write(rows, "overwrite", owner, version)

    def _write(self, rows: DataFrame, mode: str, owner: str, version: int) -> None:
        out = rows.write.format("delta").mode(mode).option("txnAppId", owner).option("txnVersion", version)
        out.save(self.place)

    def _of_batch(self, owner: str, version: int) -> Mapping[str, str]:
        prefix = "spark.databricks.delta.write"
        return {f"{prefix}.txnAppId": owner, f"{prefix}.txnVersion": str(version)}

    def compact(self, cluster_by: Sequence[str]) -> tuple[int, int]:
        clustered = self.sql(f"DESCRIBE DETAIL {self.name}")[0]["clusteringColumns"]
        if cluster_by and list(clustered) != list(cluster_by):
            self.sql(f"ALTER TABLE {self.name} CLUSTER BY ({names(cluster_by)})")
        metrics = self.sql(f"OPTIMIZE {self.name}")[0]["metrics"]
        return metrics["numFilesRemoved"], metrics["numFilesAdded"]


class IcebergTable(OpenTable):
    def __init__(self, spark: SparkSession, place: str) -> None:
        super().__init__(spark, place)
        self.table = place.rstrip("/").rpartition("/")[2]
        self.name = f"{CATALOG}.{quoted(self.table)}"

    @property
    def format(self) -> str:
        return "iceberg"

    def _clustered(self, cluster_by: Sequence[str]) -> str:
        # Compaction sorts.
        del cluster_by
        return ""

    def exists(self) -> bool:
        return exists(self._spark, f"{self.place}/{ICEBERG_HINT}")

    def _properties(self, owner: str) -> str:
        return f"{super()._properties(owner)}, 'write.wap.enabled' = 'true'"

    def is_written(self, owner: str, version: int) -> bool:
        """Only snapshots that the current one is made from count: a staged one may never be published."""
        write = text(write_id(owner, version))
        found = self.sql(
            f"SELECT 1 FROM {self.name}.snapshots AS s JOIN {self.name}.history AS h ON s.snapshot_id = h.snapshot_id "
            f"WHERE h.is_current_ancestor AND {write} IN "
            f"(summary['wap.id'], summary['published-wap-id'], summary['{VERSION}']) LIMIT 1"
        )
        return bool(found)

    def append(self, rows: DataFrame, owner: str, version: int) -> None:
        """Staged, then published: of two writers with one id the second is refused.

        A writer that died in between has left a staged write of the same rows, which is published now.
        """
        write = write_id(owner, version)
        staged = self._staged(write)
        if staged is None:
            with settings(rows.sparkSession, {"spark.wap.id": write}):
                rows.writeTo(self.name).append()
            staged = self._staged(write)
            # A batch without rows is no write.
            if staged is None:
                return
        self.publish(staged)

    def _staged(self, write: str) -> int | None:
        """The first snapshot with this id."""
        found = self.sql(
            f"SELECT snapshot_id FROM {self.name}.snapshots WHERE summary['wap.id'] = {text(write)} "
            "ORDER BY committed_at, snapshot_id LIMIT 1"
        )
        return found[0]["snapshot_id"] if found else None

    def publish(self, snapshot: int) -> None:
        """By its number: `publish_changes` refuses an id that two writers have staged."""
        self.sql(
            f"CALL {CATALOG}.system.cherrypick_snapshot(table => {text(quoted(self.table))}, snapshot_id => {snapshot})"
        )

    def replace(self, rows: DataFrame, owner: str, version: int) -> None:
        # Done twice it is the same.
        out = rows.writeTo(self.name).option(f"snapshot-property.{VERSION}", write_id(owner, version))
        out.overwrite(lit(True))

    def _of_batch(self, owner: str, version: int) -> Mapping[str, str]:
        return {f"spark.sql.iceberg.snapshot-property.{VERSION}": write_id(owner, version)}

    def compact(self, cluster_by: Sequence[str]) -> tuple[int, int]:
        sorting = f", strategy => 'sort', sort_order => {text(', '.join(cluster_by))}" if cluster_by else ""
        (done,) = self.sql(
            f"CALL {CATALOG}.system.rewrite_data_files(table => {text(quoted(self.table))}{sorting}, "
            "options => map('min-input-files', '2'))"
        )
        return done["rewritten_data_files_count"], done["added_data_files_count"]


def open_table(spark: SparkSession, place: str, format: str) -> OpenTable:
    """The table at a place; Spark must have the jars of its format."""
    kind = DeltaTable if format == "delta" else IcebergTable
    probe = "io.delta.tables.DeltaTable" if format == "delta" else "org.apache.iceberg.spark.SparkCatalog"
    java = getattr(cast("Any", spark), "_jvm", None)
    if java is None:
        # A remote session: its server has the jars, or says what it lacks.
        return kind(spark, place)
    try:
        java.org.apache.spark.util.Utils.classForName(probe, True, False)
    except Exception as error:
        if "ClassNotFoundException" not in str(error):
            raise
        raise JarsMissing(
            f"the table {place} has the format {format}, and Spark was started without its jars: "
            f"add --packages {format}, which needs a Spark that {format} supports"
        ) from None
    return kind(spark, place)


def write_id(owner: str, version: int) -> str:
    return f"{owner}:{version}"


@contextlib.contextmanager
def settings(spark: SparkSession, values: Mapping[str, str]) -> Generator[None]:
    """Set them for a while."""
    before = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def names(columns: Sequence[str]) -> str:
    return ", ".join(map(quoted, columns))


def text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def ddl(spark: SparkSession, kind: DataType) -> str:
    """The type as SQL writes it, with quoted names inside."""
    java: Any = cast("Any", spark)._jvm.org.apache.spark.sql.types.DataType
    return java.fromJson(kind.json()).sql()

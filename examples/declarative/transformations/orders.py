"""Orders of a topic become a table, and large ones go on to another topic."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, struct, to_json

spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    records = spark.readStream.format("topics").options(
        subscribe="shop.orders", startingOffsets="earliest", schema="id BIGINT, total DOUBLE"
    )
    return records.load().select("seq", "ts", "tag", "data.*")


dp.create_sink("large", format="topics", options={"topic": "shop.large"})


@dp.append_flow(target="large")
def large_orders() -> DataFrame:
    found = spark.readStream.table("orders").where(col("total") >= 100)
    return found.select("tag", to_json(struct("id", "total")).alias("data"))

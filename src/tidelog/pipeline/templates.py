"""The files of a new project. Pure.

The project is whole: it reads a topic of orders, sets aside what is no order, counts the rest by minutes of event time,
and writes the minutes to a table and to a topic. It is meant to be changed.
"""

from __future__ import annotations

SPEC = """\
# A project of Spark Declarative Pipelines. `tidelog pipeline run` runs it, `tidelog pipeline dry-run` checks it.
name: {name}
# Checkpoints: how far each flow has read. Without them a run begins anew.
storage: {storage}
configuration:
  tidelog.bootstrap.servers: {bootstrap}
  # How much one micro-batch takes from the topic.
  orders.max.offsets.per.trigger: "{max_offsets}"
  spark.sql.session.timeZone: UTC
libraries:
  - glob:
      include: transformations/**
"""

ORDERS = '''\
"""From the topic `orders`: what is an order, and what is not, which goes to a topic of its own.

An order is JSON: {"order": 7, "ts": 1700000000000, "amount_cents": 1999}, ts in milliseconds.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark: SparkSession  # the pipeline puts it here

SERVERS = spark.conf.get("tidelog.bootstrap.servers")
MAX_OFFSETS = spark.conf.get("orders.max.offsets.per.trigger")
FIELDS = "order BIGINT, ts BIGINT, amount_cents BIGINT"


def raw(group: str) -> DataFrame:
    """The topic as it is. How far a flow has read shows as the lag of its group: `tidelog groups describe`."""
    return (
        spark.readStream.format("tidelog")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", MAX_OFFSETS)
        .option("group", group)
        .load()
        .withColumn("o", F.from_json(F.col("value").cast("string"), FIELDS))
        .withColumn("is_order", F.expr("o.order IS NOT NULL AND o.ts IS NOT NULL AND o.amount_cents IS NOT NULL"))
    )


@dp.temporary_view
def cleaned() -> DataFrame:
    """Orders only. What comes more than ten minutes behind the latest order is too late (event-time watermark).

    The watermark is set here, where the topic is read: Spark 4.3 cannot set it on another dataset of the pipeline.
    """
    return (
        raw("{name}-minutes")
        .where("is_order")
        .select(F.timestamp_millis("o.ts").alias("at"), "o.amount_cents")
        .withWatermark("at", "10 minutes")
    )


dp.create_sink("dead_letters", "tidelog", {"kafka.bootstrap.servers": SERVERS, "topic": "orders.dead-letters"})


@dp.append_flow(target="dead_letters", name="dead_letters")
def dead_letters() -> DataFrame:
    return raw("{name}-dead-letters").where("NOT is_order").select("key", "value", "timestamp")


dp.create_sink("minutes_topic", "tidelog", {"kafka.bootstrap.servers": SERVERS, "topic": "orders.minutes"})


@dp.append_flow(target="minutes_topic", name="minutes_topic")
def minutes_topic() -> DataFrame:
    """The same rows as in the table, by key: at least once, so a reader keeps one of each key."""
    return spark.readStream.table("minutes").select(
        F.date_format("minute", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("key"),
        F.to_json(F.struct("minute", "orders", "amount_cents")).alias("value"),
    )
'''

MINUTES = """\
-- One row for each minute of event time, written when the watermark has passed it: then no order can change it.
CREATE STREAMING TABLE minutes USING parquet AS
SELECT window.start AS minute, orders, amount_cents
FROM (
  SELECT window(at, '1 minute') AS window, count(*) AS orders, sum(amount_cents) AS amount_cents
  FROM STREAM cleaned
  GROUP BY window(at, '1 minute')
);
"""

IGNORED = """\
pipeline-storage/
warehouse/
.tidelog/
__pycache__/
"""

TOPICS = ("orders", "orders.dead-letters", "orders.minutes")
"""What the project reads and writes."""

DEFAULT_MAX_OFFSETS = 200_000


def project_files(name: str, storage: str, bootstrap: str, max_offsets: int = DEFAULT_MAX_OFFSETS) -> dict[str, str]:
    """Text by path."""
    return {
        "spark-pipeline.yml": SPEC.format(name=name, storage=storage, bootstrap=bootstrap, max_offsets=max_offsets),
        "transformations/orders.py": ORDERS.replace("{name}", name),
        "transformations/minutes.sql": MINUTES,
        ".gitignore": IGNORED,
    }

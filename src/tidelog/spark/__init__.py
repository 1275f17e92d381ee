"""Topics in Spark: format("tidelog"), batch and streaming, reading and writing.

Pure: `options` and `settings` (what a user asks for), `offsets` (JSON and bounds), `limits` (how much, in how many
tasks), `filters`, `sink_columns`. On the driver `planning` asks the brokers; in tasks `reading` decodes into Arrow
batches and `writing` encodes from them. `source` and `stream` are what Spark calls. Nothing here imports pyspark until
Spark is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session(app_name: str = "tidelog", master: str | None = None) -> SparkSession.Builder:
    """A session builder with settings that suit one machine; `.getOrCreate()` starts the session."""
    from tidelog.spark.building import builder

    return builder(app_name, master)

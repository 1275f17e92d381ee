"""Spark sessions with settings that suit format("tidelog") and one machine."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tidelog.spark.java_options import DRIVER, EXECUTOR, SUBMITTED, beside_users

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Rows leave Arrow one value at a time, and Spark has looked whether it is there: looking again for each, and for the
# bounds of its buffer, was a fifth of what a task of a plain read did.
ARROW = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
_SETTINGS = {
    # Without it Spark refuses every batch read of a source that takes filters.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    # Spark's 200 are for a cluster.
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
}


def builder(app_name: str, master: str | None) -> SparkSession.Builder:
    """`master` is this machine by default, or what spark-submit was told; settings made here go before its own.

    Workers run the Python that this process runs, unless told otherwise.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    made = SparkSession.Builder().appName(app_name)
    # Spark puts these before the user's own extraJavaOptions, wherever those were set.
    settings = {**_SETTINGS, **beside_users({DRIVER: ARROW, EXECUTOR: ARROW})}
    # spark-submit has been told of a master, or has chosen one.
    if master is not None or SUBMITTED not in os.environ:
        where = master or "local[*]"
        settings.update(_LOCAL if where.startswith("local") else {})
        made = made.master(where)
    for name, value in settings.items():
        made = made.config(name, value)
    return made

"""How Spark finds format("tidelog") by itself: it looks into every package whose name begins with pyspark_."""

from tidelog.spark.source import TidelogDataSource as DefaultSource

__all__ = ["DefaultSource"]

"""tidelog: a partitioned, replicated commit log that Kafka clients take for Kafka."""

__version__ = "0.1.0.dev0"

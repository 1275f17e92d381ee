"""Apache Kafka beside us: its jars, brokers and tools, for tests and benchmarks that compare.

`python -m peers` fetches what is needed; nothing of tidelog itself is imported here, so that what judges
our work cannot share its mistakes.
"""

"""How long Kafka takes to recover a partition after a crash, by its own clock.

Kafka is started on a directory that has neither a clean shutdown file nor a recovery point, as kill -9 leaves a new
partition: it must read and check every batch and rebuild the indexes. It says itself how long the load of a log took,
so the start of the JVM and of ZooKeeper do not count.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from peers import home
from peers.kafka import Broker, KraftBroker, ZooKeeperBroker
from peers.zookeeper import ZooKeeper

KAFKA_JVM = (
    "-Xms1g",
    "-Xmx1g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
"""What Kafka's own start script gives a broker."""
_LOADED = re.compile(
    r"Completed load of \w+\(dir=\S+, topic=(?P<topic>\S+), partition=(?P<partition>\d+), "
    r".* in (?P<ms>\d+)ms \(\d+/\d+ completed in"
)
_DEADLINE_S = 300.0
_CHUNK = 1 << 20


def kafka_recovery_seconds(directory: str | os.PathLike[str], version: str = home.KAFKA_ZOOKEEPER) -> float:
    """Seconds that Kafka needs to recover `directory`, which holds one partition and is named like it (`orders-0`).

    Kafka works on hard links of the segments and copies of the rest, beside the directory: the same pages of the same
    files, read into the page cache before, and the directory itself is left as it was.
    """
    partition = Path(directory)
    with tempfile.TemporaryDirectory(dir=partition.parent.parent) as scratch:
        log_dir = Path(scratch) / "log"
        _link_partition(partition, log_dir / partition.name)
        settings: dict[str, str | int] = {"log.dirs": str(log_dir), "num.recovery.threads.per.data.dir": 1}
        if version == home.KAFKA_KRAFT:
            settings["metadata.log.dir"] = f"{scratch}/metadata"
            return _time_load(
                KraftBroker(Path(scratch), log_dir=log_dir, settings=settings, jvm_options=KAFKA_JVM), partition
            )
        with ZooKeeper(Path(scratch) / "zookeeper") as zookeeper:
            broker = ZooKeeperBroker(
                Path(scratch), zookeeper, log_dir=log_dir, settings=settings, jvm_options=KAFKA_JVM
            )
            return _time_load(broker, partition)


def warm_page_cache(directory: str | os.PathLike[str]) -> int:
    """Read every file of it once; the number of bytes. To be called before each side's turn."""
    total = 0
    for path in sorted(Path(directory).iterdir()):
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(_CHUNK):
                total += len(chunk)
    return total


def _link_partition(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        if path.suffix == ".log":
            os.link(path, target / path.name)
        else:
            shutil.copyfile(path, target / path.name)
    warm_page_cache(target)


def _time_load(broker: Broker, partition: Path) -> float:
    try:
        broker.start(_DEADLINE_S)
    finally:
        broker.kill()
    times = {f"{found['topic']}-{found['partition']}": int(found["ms"]) for found in _LOADED.finditer(broker.output())}
    assert "Recovering unflushed segment" in broker.output(), "Kafka took the directory for a clean one"
    return times[partition.name] / 1000

"""Where the peers live on this machine, and the one place that knows their versions.

All of it is under .cache in the checkout: made by `python -m peers`, ignored by git, removed by `make clean`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
CACHE = CHECKOUT / ".cache" / "peers"
JAVA_SOURCES = CHECKOUT / "tools" / "java"

KAFKA_ZOOKEEPER = "3.9.1"
"""The last line of Kafka that runs on ZooKeeper and knows the controller's requests to its brokers."""
KAFKA_KRAFT = "4.1.0"
VERSIONS = (KAFKA_ZOOKEEPER, KAFKA_KRAFT)


class PeersMissingError(Exception):
    """Something the peers need is not on this machine; the message says what to do about it."""


def libs(version: str) -> Path:
    """The directory of one version's jars."""
    return CACHE / f"kafka-{version}" / "libs"


def compiled(version: str) -> Path:
    """Our own Java mains, compiled against that version."""
    return CACHE / f"java-{version}"


def stamp(directory: Path) -> Path:
    """The file whose text says what the directory was made from; written last, so a half-made one has none."""
    return directory / ".made-from"


def program(name: str) -> str:
    """The path of `java`, `javac` or `mvn`."""
    found = shutil.which(name)
    if found is None:
        raise PeersMissingError(
            f"`{name}` is not on the PATH: the peers need a JDK of version 17 or later and Maven "
            "(on Debian: openjdk-17-jdk-headless and maven)"
        )
    return found


def classpath(version: str) -> str:
    """For java -cp: our mains first, then that version's jars."""
    for directory in (libs(version).parent, compiled(version)):
        if not stamp(directory).exists():
            raise PeersMissingError(f"Kafka {version} has not been fetched: run `make peers`")
    return f"{compiled(version)}:{libs(version)}/*"

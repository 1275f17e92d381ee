"""Spark's own Kafka connector: its jars, one by one.

Spark's poms name a mirror that may be out of reach, so nothing is resolved: these four are all it needs to run.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from peers import home

_ARTIFACTS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.0",
)
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
_DIRECTORY = home.CACHE / "spark-connector"


def fetch() -> None:
    """Make the jars present; done twice it does nothing the second time."""
    made_from = "\n".join(_ARTIFACTS)
    stamp = home.stamp(_DIRECTORY)
    if stamp.exists() and stamp.read_text() == made_from:
        return
    print("fetching Spark's Kafka connector ...", flush=True)
    _DIRECTORY.mkdir(parents=True, exist_ok=True)
    for artifact in _ARTIFACTS:
        command = [home.program("mvn"), "-q", "-B", _COPY, f"-Dartifact={artifact}:jar"]
        done = subprocess.run(
            [*command, f"-DoutputDirectory={_DIRECTORY}"], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise home.PeersMissingError(f"mvn did not bring {artifact}:\n{done.stdout}{done.stderr}")
    stamp.write_text(made_from)


def jars() -> list[Path]:
    """For spark.jars."""
    if not home.stamp(_DIRECTORY).exists():
        raise home.PeersMissingError("Spark's Kafka connector has not been fetched: run `make peers`")
    return sorted(_DIRECTORY.glob("*.jar"))

"""A worker of Kafka Connect 4.1.0 in distributed mode, with the connectors for files."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from peers import home
from peers.process import JavaServer, PeerFailedError, free_port

_DIRECTORY = home.CACHE / "connect-file"
_ARTIFACT = f"org.apache.kafka:connect-file:{home.KAFKA_KRAFT}"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
_ASK_DEADLINE_S = 20.0
_LOG4J2 = """appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %m (%c)%n
rootLogger.level=WARN
rootLogger.appenderRef.out.ref=out
"""


def fetch() -> None:
    """Make the jar of the connectors present; Connect itself is among Kafka's jars."""
    stamp = home.stamp(_DIRECTORY)
    if stamp.exists() and stamp.read_text() == _ARTIFACT:
        return
    print("fetching Kafka Connect's connectors for files ...", flush=True)
    _DIRECTORY.mkdir(parents=True, exist_ok=True)
    command = [home.program("mvn"), "-q", "-B", _COPY, f"-Dartifact={_ARTIFACT}:jar", f"-DoutputDirectory={_DIRECTORY}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise home.PeersMissingError(f"mvn did not bring {_ARTIFACT}:\n{done.stdout}{done.stderr}")
    stamp.write_text(_ARTIFACT)


class ConnectWorker(JavaServer):
    """It keeps connectors, offsets and statuses in topics of the cluster, so that it may be started anew anywhere."""

    def __init__(self, directory: Path, bootstrap: str, name: str) -> None:
        self._port = free_port()
        self._properties = directory / "worker.properties"
        self._logging = directory / "logging.properties"
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "listeners": f"http://127.0.0.1:{self._port}",
            "plugin.path": str(_DIRECTORY),
            "plugin.discovery": "service_load",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offset.flush.interval.ms": 200,
            "scheduled.rebalance.max.delay.ms": 0,
            "offset.storage.partitions": 2,
            "status.storage.partitions": 2,
        }
        for kind in ("config", "offset", "status"):
            self._settings[f"{kind}.storage.topic"] = f"{name}-{kind}"
            self._settings[f"{kind}.storage.replication.factor"] = 1
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        super().__init__(home.KAFKA_KRAFT, main, [str(self._properties)], directory=directory)
        self._jvm_options = [*self._jvm_options, f"-Dlog4j2.configurationFile={self._logging}"]

    def start(self, deadline_s: float = 90.0) -> None:
        if not home.stamp(_DIRECTORY).exists():
            raise home.PeersMissingError(
                "Connect's file connectors have not been fetched: run `python -m peers --tools`"
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))
        self._logging.write_text(_LOG4J2)
        super().start(deadline_s)

    def is_ready(self) -> bool:
        """It has read its topics and joined its group: before that it refuses to tell of connectors."""
        try:
            return self.ask("GET", "/connectors") is not None
        except (OSError, PeerFailedError):
            return False

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Its answer, which is JSON or nothing; PeerFailedError if it refuses."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_ASK_DEADLINE_S) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise PeerFailedError(f"{method} {path}: {error.code} {error.read().decode(errors='replace')}") from error

"""Kafka brokers of one node: 3.9.1 on ZooKeeper, 4.1.0 on KRaft, on free loopback ports.

They log to one file that is shown when something fails. Log directories are plain paths, so that a test may hand
a broker what tidelog wrote and read what the broker left.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from peers import home
from peers.process import SMALL_JVM, JavaServer, PeerFailedError, free_port, run_java
from peers.zookeeper import ZooKeeper

Settings = Mapping[str, str | int]

_SMALL: Settings = {
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    "num.network.threads": 1,
    "num.io.threads": 2,
    "log.cleaner.dedupe.buffer.size": 2 * 1024 * 1024,
    "auto.create.topics.enable": "false",
}
_RELOAD4J = """log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %p %m (%c)%n
log4j.logger.kafka.server.KafkaConfig=WARN
log4j.logger.org.apache.kafka.common.config.AbstractConfig=WARN
"""
_LOG4J2 = """rootLogger.level=INFO
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{ISO8601} %p %m (%c)%n
logger.settings.name=org.apache.kafka.common.config.AbstractConfig
logger.settings.level=WARN
"""
_METADATA = struct.pack(">ihhihi", 14, 3, 1, 7, -1, 0)
"""A whole Metadata v1 request for no topic, with correlation id 7 and no client id."""
_SESSION_DEADLINE_S = 30.0
CLUSTER_ID = "dGlkZWxvZy1wZWVycy0wMQ"
"""What a KRaft broker is formatted with; a broker on ZooKeeper makes its own."""


class Broker(JavaServer):
    """A broker and controller in one process, with id 1 unless the settings say another `broker.id`."""

    def __init__(
        self, version: str, directory: Path, log_dir: Path, settings: Settings, jvm_options: Sequence[str]
    ) -> None:
        self.log_dir = log_dir
        self.port = free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.settings: dict[str, str | int] = {**_SMALL, "log.dirs": str(log_dir), **settings}
        self._properties = directory / "server.properties"
        self._logging_file = directory / "logging.properties"
        self._logging = _RELOAD4J if version == home.KAFKA_ZOOKEEPER else _LOG4J2
        option = "-Dlog4j.configuration=file:" if version == home.KAFKA_ZOOKEEPER else "-Dlog4j2.configurationFile="
        super().__init__(
            version,
            "kafka.Kafka",
            [str(self._properties)],
            directory=directory,
            jvm_options=[*jvm_options, f"{option}{self._logging_file}"],
        )

    def start(self, deadline_s: float = 90.0) -> None:
        self._write_configuration()
        super().start(deadline_s)

    def _write_configuration(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._logging_file.write_text(self._logging)
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in self.settings.items()))

    def is_ready(self) -> bool:
        """It answers, is registered itself, and knows its controller; before that, clients would be told to wait."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.settimeout(5)
                connection.sendall(_METADATA)
                (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
                answer = connection.recv(size, socket.MSG_WAITALL)
        except (OSError, struct.error):
            return False
        return _controller_of(answer) >= 0


def _controller_of(answer: bytes) -> int:
    """The controller id in a Metadata v1 response: it stands after the brokers."""
    (broker_count,) = struct.unpack_from(">i", answer, 4)
    position = 8
    for _ in range(broker_count):
        position += 4
        (host_size,) = struct.unpack_from(">h", answer, position)
        position += 2 + host_size + 4
        (rack_size,) = struct.unpack_from(">h", answer, position)
        position += 2 + max(rack_size, 0)
    (controller_id,) = struct.unpack_from(">i", answer, position)
    return int(controller_id) if broker_count else -1


class ZooKeeperBroker(Broker):
    """Kafka 3.9.1 that keeps its metadata in ZooKeeper."""

    def __init__(
        self,
        directory: Path,
        zookeeper: ZooKeeper,
        *,
        log_dir: Path | None = None,
        settings: Settings | None = None,
        jvm_options: Sequence[str] = SMALL_JVM,
    ) -> None:
        super().__init__(home.KAFKA_ZOOKEEPER, directory, log_dir or directory / "log", settings or {}, jvm_options)
        self._zookeeper = zookeeper
        listener = f"PLAINTEXT://{self.bootstrap}"
        own: Settings = {
            "broker.id": 1,
            "listeners": listener,
            "zookeeper.connect": zookeeper.connect,
            "zookeeper.session.timeout.ms": 4000,
        }
        self.settings = {**own, **self.settings}

    def start(self, deadline_s: float = 90.0) -> None:
        """A broker that was killed is still registered until its session ends, and Kafka refuses to start beside it."""
        _, _, chroot = str(self.settings["zookeeper.connect"]).partition("/")
        path = f"/{chroot}/brokers/ids/{self.settings['broker.id']}".replace("//", "/")
        gone = threading.Event()
        with self._zookeeper.client() as client:
            if client.exists(path, watch=lambda event: gone.set()) and not gone.wait(_SESSION_DEADLINE_S):
                raise PeerFailedError(f"{path} did not go away within {_SESSION_DEADLINE_S} s")
        super().start(deadline_s)


class KraftBroker(Broker):
    """Kafka 4.1.0, broker and quorum controller in one process; formats its directory when that is new."""

    def __init__(
        self,
        directory: Path,
        *,
        log_dir: Path | None = None,
        settings: Settings | None = None,
        jvm_options: Sequence[str] = SMALL_JVM,
    ) -> None:
        super().__init__(home.KAFKA_KRAFT, directory, log_dir or directory / "log", settings or {}, jvm_options)
        controller = f"127.0.0.1:{free_port()}"
        own: Settings = {
            "node.id": 1,
            "process.roles": "broker,controller",
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "share.coordinator.state.topic.replication.factor": 1,
        }
        self.settings = {**own, **self.settings}

    def start(self, deadline_s: float = 90.0) -> None:
        if not (self.log_dir / "meta.properties").exists():
            self._write_configuration()
            arguments = ["format", "--cluster-id", CLUSTER_ID, "--config", str(self._properties)]
            run_java(self.version, "kafka.tools.StorageTool", arguments)
        super().start(deadline_s)

"""The brokers under test: Apache Kafka as the control, and tidelog as a user starts it."""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol

from peers.kafka import KraftBroker
from peers.kafka_cluster import NODES, kraft_nodes
from peers.process import PeerFailedError, free_port
from peers.shell import die_with_parent

CONTROL, OURS = "kafka", "tidelog"
PLAIN, AUTO_CREATE, CLUSTER = "plain", "auto-create", "cluster"
"""Servers of each: one that lets clients create topics by asking for them, one that does not; and three brokers."""

GROUPS = "groups"
NOT_SERVED_YET: Mapping[tuple[str, str], str] = {}
"""By target and need: cases that need it are skipped there, for this reason."""

SETTINGS: Mapping[str, Mapping[str, str | int]] = {
    PLAIN: {"num.partitions": 3, "auto.create.topics.enable": "false", "group.initial.rebalance.delay.ms": 0},
    AUTO_CREATE: {"num.partitions": 3, "auto.create.topics.enable": "true"},
    CLUSTER: {
        "auto.leader.rebalance.enable": "false",  # only the tools elect preferred leaders
        "controlled.shutdown.retry.backoff.ms": 100,  # who stops last has nobody to hand its partitions to
        "broker.session.timeout.ms": 4000,  # Kafka lets a broker that comes back wait for the end of its last session
        "broker.heartbeat.interval.ms": 500,
    },
}
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)
"""A whole ApiVersions v0 request with correlation id 7 and no client id."""
_READY_DEADLINE_S = 20.0
_STOP_DEADLINE_S = 20.0
_POLL_S = 0.02
_SHOWN_LINES = 40
_SHOWN_OF_EACH = 4


class Server(Protocol):
    bootstrap: str
    log_dir: Path

    def output(self) -> str: ...

    def __enter__(self) -> Server: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Node(Protocol):
    """One broker of several."""

    bootstrap: str
    log_dir: Path

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def output(self) -> str: ...


class Cluster:
    """Brokers by id. The first is the controller: it is started first, and a case stops only others."""

    def __init__(self, nodes: Mapping[int, Node]) -> None:
        self.nodes = nodes
        first, *_ = nodes.values()
        self.bootstrap = first.bootstrap
        self.log_dir = first.log_dir

    def output(self) -> str:
        """The end of what each broker printed."""
        tails = {node_id: node.output().splitlines()[-_SHOWN_OF_EACH:] for node_id, node in self.nodes.items()}
        return "\n".join(f"{node_id}: {line}" for node_id, lines in tails.items() for line in lines)

    def __enter__(self) -> Cluster:
        try:
            for node in self.nodes.values():
                node.start()
        except BaseException:
            for node in self.nodes.values():
                node.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in reversed(list(self.nodes.values())):
            node.stop()


class TidelogServer:
    """`tidelog broker --config FILE` in a process of its own."""

    def __init__(self, directory: Path, settings: Mapping[str, str | int]) -> None:
        self.log_dir = directory / "log"
        self._port = free_port()
        self.bootstrap = f"127.0.0.1:{self._port}"
        self._config = directory / "server.properties"
        self._output = directory / "broker.out"
        self._process: subprocess.Popen[bytes] | None = None
        self._settings: dict[str, str | int] = {
            "broker.id": 1,
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": str(self.log_dir),
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            **settings,
        }

    def start(self) -> None:
        """Returns when it answers. It may be started again after a stop."""
        self._config.parent.mkdir(parents=True, exist_ok=True)
        self._config.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))
        command = [str(Path(sys.executable).with_name("tidelog")), "broker", "--config", str(self._config)]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
            )
        give_up_at = time.monotonic() + _READY_DEADLINE_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                self._end(signal.SIGKILL)
                raise PeerFailedError(f"tidelog did not become ready\n{self._last_lines()}")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        if self._process is not None:
            self._end(signal.SIGKILL)

    def __enter__(self) -> TidelogServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1) as connection:
                connection.sendall(_API_VERSIONS)
                return len(connection.recv(10, socket.MSG_WAITALL)) == 10
        except OSError:
            return False

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(how)
        try:
            self._process.wait(_STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise PeerFailedError(f"tidelog did not stop\n{self._last_lines()}") from None

    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def _last_lines(self) -> str:
        return "\n".join(self.output().splitlines()[-_SHOWN_LINES:])


def tidelog_nodes(directory: Path, settings: Mapping[str, str | int]) -> dict[int, TidelogServer]:
    """By id; they agree through one directory."""
    shared: Mapping[str, str | int] = {**settings, "tidelog.coordination.dir": str(directory / "coordination")}
    return {
        node_id: TidelogServer(directory / f"node-{node_id}", {**shared, "broker.id": node_id}) for node_id in NODES
    }


class Servers:
    """Each is started when a test first needs it. Those of one target run at a time: the machine is small."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._target = ""
        self._running: dict[str, Server] = {}
        self._failed: dict[tuple[str, str], Exception] = {}

    def get(self, target: str, kind: str) -> Server:
        if target != self._target:
            self.stop()
            self._target = target
        if kind not in self._running:
            if (target, kind) in self._failed:
                raise PeerFailedError(f"{target} did not start before") from self._failed[target, kind]
            try:
                self._running[kind] = self._start(target, kind)
            except Exception as error:
                self._failed[target, kind] = error
                raise
        return self._running[kind]

    def _start(self, target: str, kind: str) -> Server:
        directory = self._directory / f"{target}-{kind}"
        if kind == CLUSTER:
            nodes = kraft_nodes if target == CONTROL else tidelog_nodes
            return Cluster(nodes(directory, SETTINGS[kind])).__enter__()
        if target == CONTROL:
            return KraftBroker(directory, settings=SETTINGS[kind]).__enter__()
        return TidelogServer(directory, SETTINGS[kind]).__enter__()

    def stop(self) -> None:
        while self._running:
            _, server = self._running.popitem()
            server.__exit__(None, None, None)

"""The clusters of the table: three brokers each, as processes that are killed and started again one by one.

All get the same settings, replication at its defaults. They differ in where they agree: ours in a directory (the
default) or through ZooKeeper, Kafka 3.9.1 through ZooKeeper.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from bench.broker_servers import COMMON, SERVER_JVM, Server, Tidelog
from bench.calls import until
from bench.cluster_view import View
from peers import home
from peers.process import PeerFailedError, java_command
from peers.zookeeper import ZooKeeper

BROKERS = (1, 2, 3)
SESSION_TIMEOUT_S = 6.0
_SETTINGS: Mapping[str, str | int] = {
    **{name: value for name, value in COMMON.items() if name != "node.id"},
    "min.insync.replicas": 2,
    "zookeeper.session.timeout.ms": int(SESSION_TIMEOUT_S * 1000),
}
_LOG4J = """log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %p %m (%c)%n
"""
_READY_DEADLINE_S = 90.0
_SESSION_DEADLINE_S = 3 * SESSION_TIMEOUT_S
_POLL_S = 0.02


class TidelogMember(Tidelog):
    """One broker of ours, which agrees with the others where `agreement` says."""

    common = _SETTINGS

    def __init__(self, directory: Path, number: int, agreement: Mapping[str, str]) -> None:
        super().__init__(directory)
        self._own: Mapping[str, str | int] = {"broker.id": number, **agreement}

    def own_settings(self) -> dict[str, str | int]:
        return {**super().own_settings(), **self._own}


class KafkaMember(Server):
    """One broker of Kafka 3.9.1 in ZooKeeper mode."""

    name = f"Kafka {home.KAFKA_ZOOKEEPER}"
    common = _SETTINGS

    def __init__(self, directory: Path, number: int, agreement: Mapping[str, str]) -> None:
        super().__init__(directory)
        self._own: Mapping[str, str | int] = {"broker.id": number, **agreement}
        self._logging = directory / "log4j.properties"

    def prepare(self) -> None:
        super().prepare()
        self._logging.write_text(_LOG4J)

    def own_settings(self) -> dict[str, str | int]:
        return {"listeners": f"PLAINTEXT://{self.bootstrap}", **self._own}

    def command(self) -> list[str]:
        options = [*SERVER_JVM, f"-Dlog4j.configuration=file:{self._logging}"]
        return java_command(home.KAFKA_ZOOKEEPER, "kafka.Kafka", [str(self.properties)], options)


class Cluster:
    """Brokers 1 to 3. A context manager: entered, all know each other and the controller; left, all are killed."""

    def __init__(self, name: str, members: Mapping[int, Server]) -> None:
        self.name = name
        self.members = members
        self.bootstrap = ",".join(member.bootstrap for member in members.values())

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self.kill_all)
            for member in self.members.values():
                member.prepare()
                member.launch()
            self._wait_ready()
            stack.pop_all()
        return self

    def __exit__(self, *failure: Any) -> None:
        self.kill_all()

    def kill_all(self) -> None:
        for member in self.members.values():
            member.kill()

    def view(self) -> View:
        """The cluster as each broker that runs sees it."""
        self._check_alive()
        return View({number: member.port for number, member in self.members.items() if member.is_running})

    def kill(self, number: int) -> Callable[[], float]:
        """kill -9. What it returns waits for the moment from which the others can know, and tells it: here, at once;
        the end of a process frees what it has locked."""
        killed_at = time.perf_counter()
        self.members[number].kill()
        return lambda: killed_at

    def restart(self, number: int) -> None:
        """Returns when all know each other again. Its session must have ended: Kafka would refuse to start."""
        self.members[number].launch()
        self._wait_ready()

    def _wait_ready(self) -> None:
        what = f"{self.name} with all brokers up"
        until(lambda: self.view().is_complete(), what, deadline_s=_READY_DEADLINE_S, poll_s=_POLL_S)

    # As bench/turns.py loads and weighs it

    @contextmanager
    def cpu_counted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for member in self.members.values():
                stack.enter_context(member.cpu_counted())
            yield

    def has_files_of(self, topic: str) -> bool:
        return any(member.has_files_of(topic) for member in self.members.values())

    def resident_bytes(self) -> int:
        return sum(member.resident_bytes() for member in self.members.values())

    def _check_alive(self) -> None:
        for member in self.members.values():
            if member.is_running:
                member.check_alive()


class ZooKeeperCluster(Cluster):
    """A cluster in a chroot of its own: the end of a session is what tells the others of a death."""

    def __init__(self, name: str, members: Mapping[int, Server], zookeeper: ZooKeeper, chroot: str) -> None:
        super().__init__(name, members)
        self._zookeeper = zookeeper
        self._chroot = chroot
        self._sessions = ExitStack()

    def __enter__(self) -> Self:
        self._watcher = self._sessions.enter_context(self._zookeeper.client())
        with ExitStack() as stack:
            stack.push(self._sessions)
            super().__enter__()
            stack.pop_all()
        return self

    def __exit__(self, *failure: Any) -> None:
        super().__exit__(*failure)
        self._sessions.close()

    def kill(self, number: int) -> Callable[[], float]:
        gone = threading.Event()
        gone_at: list[float] = []

        def on_change(event: object) -> None:
            gone_at.append(time.perf_counter())
            gone.set()

        def wait() -> float:
            if not gone.wait(_SESSION_DEADLINE_S):
                raise PeerFailedError(
                    f"{self.name}: broker {number} is registered {_SESSION_DEADLINE_S} s after it died"
                )
            return gone_at[0]

        self._watcher.exists(f"/{self._chroot}/brokers/ids/{number}", watch=on_change)
        super().kill(number)
        return wait


def embedded(directory: Path, kind: type[TidelogMember] = TidelogMember) -> Cluster:
    agreement = {"tidelog.coordination.dir": str(directory / "coordination")}
    members = {number: kind(directory / f"broker-{number}", number, agreement) for number in BROKERS}
    return Cluster(kind.name, members)


def on_zookeeper(directory: Path, zookeeper: ZooKeeper) -> Cluster:
    return _in_chroot("tidelog", TidelogMember, directory, zookeeper)


def kafka(directory: Path, zookeeper: ZooKeeper) -> Cluster:
    return _in_chroot("kafka", KafkaMember, directory, zookeeper)


def _in_chroot(
    chroot: str, kind: type[TidelogMember | KafkaMember], directory: Path, zookeeper: ZooKeeper
) -> ZooKeeperCluster:
    agreement = {"zookeeper.connect": f"{zookeeper.connect}/{chroot}"}
    members = {number: kind(directory / f"broker-{number}", number, agreement) for number in BROKERS}
    return ZooKeeperCluster(f"{kind.name} on ZooKeeper", members, zookeeper, chroot)


def settings() -> dict[str, str]:
    """What all are run with, for people; paths and ports left out."""
    return {
        "all brokers": " ".join(f"{name}={value}" for name, value in _SETTINGS.items())
        + "; all else default, no flush",
        f"{KafkaMember.name}, three brokers": "java " + " ".join(SERVER_JVM) + " kafka.Kafka server.properties",
        "tidelog, three brokers": "tidelog broker --config server.properties; agreed in a directory, or on ZooKeeper",
        "ZooKeeper": f"one server, of Kafka {home.KAFKA_ZOOKEEPER}'s jars, a chroot for each cluster",
    }

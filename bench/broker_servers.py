"""The two brokers of the table as processes: how they are set up and started, what they take of the machine.

Both are run as their users would: Kafka with the heap and the collector of its start script, tidelog by its command.
Both get the same settings, which leave everything that is not named at its default; neither is told to flush.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.kafka_recovery import KAFKA_JVM
from peers import home
from peers.kafka import CLUSTER_ID
from peers.process import PeerFailedError, free_port, java_command, run_java

COMMON: Mapping[str, str | int] = {
    "node.id": 1,
    "auto.create.topics.enable": "false",
    "num.network.threads": 3,
    "num.io.threads": 8,
    "log.flush.interval.messages": 2**63 - 1,
    "log.segment.delete.delay.ms": 1000,
}
"""Kafka's defaults, but for the id, topics that only we make, and deleted files, which go before the next turn."""

_LOG4J2 = """rootLogger.level=INFO
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{ISO8601} %p %m (%c)%n
"""
SERVER_JVM = (*KAFKA_JVM, "-Djava.awt.headless=true")
_STOP_DEADLINE_S = 30.0
_SHOWN_LINES = 25
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Server(ABC):
    """One broker in a directory of its own. Prepared, launched, killed; and its processes are weighed meanwhile."""

    name: str
    common = COMMON

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log_dir = directory / "log"
        self.port = free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.properties = directory / "server.properties"
        self.output_file = directory / "broker.out"
        self.cpu_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Everything that comes before a start and is not part of it."""
        self.directory.mkdir(parents=True)
        settings = {**self.common, **self.own_settings(), "log.dirs": self.log_dir}
        self.properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    @abstractmethod
    def own_settings(self) -> dict[str, str | int]: ...

    @abstractmethod
    def command(self) -> list[str]: ...

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def launch(self) -> None:
        with self.output_file.open("wb") as output:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment(),
                preexec_fn=_die_with_parent,
            )

    def check_alive(self) -> None:
        if self._process is None or self._process.poll() is not None:
            lines = self.output_file.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
            raise PeerFailedError("\n".join([f"{self.name} is not running any more", *lines]))

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def kill(self) -> None:
        """Its end as by a crash (kill -9)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def has_files_of(self, topic: str) -> bool:
        return any(self.log_dir.glob(f"{topic}-*"))

    def stop(self) -> None:
        """A clean end, or kill -9 for one that takes too long."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    @contextmanager
    def cpu_counted(self) -> Iterator[None]:
        """What the broker uses meanwhile is added to `cpu_s`."""
        before = self._cpu_so_far_s()
        yield
        self.check_alive()
        self.cpu_s += self._cpu_so_far_s() - before

    def _cpu_so_far_s(self) -> float:
        ticks = 0
        for pid in self._pids():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])  # utime and stime
        return ticks / _TICKS_PER_S

    def resident_bytes(self) -> int:
        total_kb = 0
        for pid in self._pids():
            status = Path(f"/proc/{pid}/status").read_text().splitlines()
            total_kb += sum(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
        return total_kb * 1024

    def _pids(self) -> Iterator[int]:
        """The process and all that it started: a broker must not hide its work in children."""
        assert self._process is not None, "not running"
        pending = [self._process.pid]
        while pending:
            pid = pending.pop()
            yield pid
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                pending += map(int, children.read_text().split())


class Kafka(Server):
    """Kafka 4.1.0, broker and controller in one process. Its directory is formatted before the clock starts."""

    name = f"Kafka {home.KAFKA_KRAFT}"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._controller_port = free_port()
        self._logging = directory / "log4j2.properties"

    def prepare(self) -> None:
        super().prepare()
        self._logging.write_text(_LOG4J2)
        arguments = ["format", "--cluster-id", CLUSTER_ID, "--config", str(self.properties)]
        run_java(home.KAFKA_KRAFT, "kafka.tools.StorageTool", arguments)

    def own_settings(self) -> dict[str, str | int]:
        controller = f"127.0.0.1:{self._controller_port}"
        return {
            "process.roles": "broker,controller",
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }

    def command(self) -> list[str]:
        options = [*SERVER_JVM, f"-Dlog4j2.configurationFile={self._logging}"]
        return java_command(home.KAFKA_KRAFT, "kafka.Kafka", [str(self.properties)], options)


class Tidelog(Server):
    """A broker of ours, by its command, from the environment that runs the bench."""

    name = "tidelog"

    def own_settings(self) -> dict[str, str | int]:
        return {"listeners": f"PLAINTEXT://{self.bootstrap}"}

    def command(self) -> list[str]:
        return [str(Path(sys.executable).parent / "tidelog"), "broker", "--config", str(self.properties)]


class Before(Tidelog):
    """A broker of the checkout that BENCH_BEFORE names."""

    name = "before"

    def environment(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": str(Path(os.environ["BENCH_BEFORE"]) / "src")}


def settings() -> dict[str, str]:
    """What both are run with, for people; paths and ports left out."""
    return {
        "both brokers": " ".join(f"{name}={value}" for name, value in COMMON.items()) + "; all else default, no flush",
        Kafka.name: "java " + " ".join(SERVER_JVM) + " kafka.Kafka server.properties; process.roles=broker,controller",
        Tidelog.name: "tidelog broker --config server.properties",
    }

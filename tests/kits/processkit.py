"""A broker in a process of its own, with its log lines and its memory in view."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

DEADLINE_S = 60.0
_PORTS = iter(random.sample(range(12_000, 32_000), 20_000))
"""Below those the kernel gives to outgoing connections, one of which could take the port of a broker that is down."""


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)


def free_port() -> int:
    """One that a broker can keep over a restart; never the same twice."""
    for port in _PORTS:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


class BrokerProcess:
    """`tidelog broker` on a free port, with a directory of its own. Settings are written with underscores."""

    def __init__(self, directory: Path, prelude: Sequence[str] = (), **settings: str) -> None:
        self.directory = directory
        self._prelude = list(prelude)
        self._log = directory / "broker.log"
        self._properties = directory / "server.properties"
        values = {
            "broker.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(directory / "data"),
            "tidelog.coordination.dir": str(directory / "coordination"),
            "auto.create.topics.enable": "false",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        self.ports: dict[str, int] = {}
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        ready, told = os.pipe()
        command = [*self._prelude, sys.executable, "-m", "tidelog", "broker", "--config", str(self._properties)]
        with open(self._log, "ab") as log:
            process = subprocess.Popen([*command, "--ready-fd", str(told)], stderr=log, stdout=log, pass_fds=[told])
        os.close(told)
        with os.fdopen(ready, "rb") as pipe:
            is_heard_of, _, _ = select.select([pipe], [], [], DEADLINE_S)
            line = pipe.readline() if is_heard_of else b""
        if not line:
            process.kill()
            process.wait()
            raise AssertionError(f"the broker did not start:\n{self.log}")
        self.ports = json.loads(line)
        return process

    @property
    def port(self) -> int:
        return self.ports["PLAINTEXT"]

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def lines(self, *words: str) -> list[str]:
        """Of the log, those with all these words."""
        return [line for line in self.log.splitlines() if all(word in line for word in words)]

    @property
    def rss_mb(self) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("the broker is gone")

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> int:
        """Its exit status."""
        if self.is_alive:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def kill(self) -> None:
        """As a crash ends it (kill -9)."""
        self.process.kill()
        self.process.wait()

    def start_again(self) -> None:
        """With the same settings and directory; on the same port only if the settings name one."""
        assert not self.is_alive, "it still runs"
        self.process = self._start()


@contextmanager
def broker_process(directory: Path, prelude: Sequence[str] = (), **settings: str) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(directory, prelude, **settings)
    try:
        yield broker
    finally:
        if broker.is_alive:
            broker.stop()

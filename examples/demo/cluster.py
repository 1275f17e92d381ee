"""Three brokers, a process each, that agree through a directory: tidelog's default on one machine."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

BROKERS = (1, 2, 3)
_START_S = 60.0
_STOP_S = 30.0


class BrokerProcesses:
    """The processes that this one has started, and no others."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._ports: dict[int, int] = {}

    def start(self) -> None:
        """All at once; returns when all are ready."""
        ready = {number: self._start(number) for number in BROKERS}
        for number, pipe in ready.items():
            with os.fdopen(pipe, "rb") as told:
                heard, _, _ = select.select([told], [], [], _START_S)
                line = told.readline() if heard else b""
            if not line:
                raise SystemExit(f"broker {number} did not start; see {self._log(number)}")
            self._ports[number] = json.loads(line)["PLAINTEXT"]

    def _start(self, number: int) -> int:
        properties = self._directory / f"broker-{number}.properties"
        settings = {
            "broker.id": str(number),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(self._directory / f"broker-{number}"),
            "tidelog.coordination.dir": str(self._directory / "coordination"),
            "offsets.topic.num.partitions": "6",
            "offsets.topic.replication.factor": "3",
            "controlled.shutdown.retry.backoff.ms": "100",
        }
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        ready, told = os.pipe()
        command = [sys.executable, "-m", "tidelog", "broker", "--config", str(properties)]
        supervision = ["--supervised-by", str(os.getpid()), "--ready-fd", str(told)]
        with open(self._log(number), "wb") as log:
            self._processes[number] = subprocess.Popen(
                command + supervision, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[told]
            )
        os.close(told)
        return ready

    def _log(self, number: int) -> Path:
        return self._directory / f"broker-{number}.log"

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def kill(self, number: int) -> int:
        """kill -9; the process id that it had."""
        process = self._processes[number]
        process.send_signal(signal.SIGKILL)
        process.wait()
        return process.pid

    def stop(self) -> None:
        alive = [process for process in self._processes.values() if process.poll() is None]
        for process in alive:
            process.terminate()
        for process in alive:
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def broker_processes(directory: Path) -> Iterator[BrokerProcesses]:
    brokers = BrokerProcesses(directory)
    try:
        brokers.start()
        yield brokers
    finally:
        brokers.stop()

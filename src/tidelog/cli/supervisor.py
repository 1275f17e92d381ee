"""Broker processes under supervision: started together, watched, stopped together."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import click

_START_S = 60.0
_STOP_S = 60.0
_RESTART_S = 1.0
_LAST_LINES = 8


class _BrokerProcess:
    """One broker: its files, and its process while it has one."""

    def __init__(self, number: int, port: int, data: Path, settings: Mapping[str, str]) -> None:
        self.number = number
        self.port = port
        self.directory = data / f"broker-{number}"
        self.log_file = data / f"broker-{number}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.restart_at: float | None = None
        self._settings = settings
        self._properties = data / f"broker-{number}.properties"

    def start(self) -> int:
        """The descriptor that becomes readable when it is ready, or when it died."""
        self._properties.write_text("".join(f"{name}={_escaped(text)}\n" for name, text in self._settings.items()))
        ready, told = os.pipe()
        with open(self.log_file, "ab") as log:
            supervision = ("--supervised-by", str(os.getpid()), "--ready-fd", str(told))
            self.process = subprocess.Popen(
                (sys.executable, "-m", "tidelog", "broker", "--config", str(self._properties), *supervision),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(told,),
                start_new_session=True,
            )
        os.close(told)
        return ready

    def last_words(self) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-_LAST_LINES:])
        return ""


class Supervisor:
    """Ends with status 0 after Ctrl-C or SIGTERM and a clean stop, with 1 if a broker failed."""

    def __init__(
        self,
        brokers: int,
        port: int,
        data: str,
        settings: Mapping[str, str],
        *,
        zookeeper: str | None = None,
        restart: bool = False,
    ) -> None:
        self._data = Path(data).absolute()
        self._coordination = (
            {"tidelog.coordination.dir": str(self._data / "coordination")}
            if zookeeper is None
            else {"zookeeper.connect": zookeeper}
        )
        self._restart = restart
        self._brokers = [
            _BrokerProcess(number, port + number - 1, self._data, self._settings(number, brokers, port, settings))
            for number in range(1, brokers + 1)
        ]
        self._wake, self._woken = os.pipe()
        self._told_to_stop = False
        self._failed = False

    def _settings(self, number: int, brokers: int, port: int, given: Mapping[str, str]) -> dict[str, str]:
        copies = str(min(3, brokers))
        given = dict(given)
        if (metrics_port := given.get("tidelog.metrics.port", "")).isdecimal() and int(metrics_port):
            given["tidelog.metrics.port"] = str(int(metrics_port) + number - 1)
        return {
            "broker.id": str(number),
            "listeners": f"PLAINTEXT://127.0.0.1:{port + number - 1}",
            "log.dirs": str(self._data / f"broker-{number}"),
            **self._coordination,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": str(min(2, brokers)),
            "controlled.shutdown.retry.backoff.ms": "300",  # all stop at once: nobody is left to hand over to
            **given,
        }

    def run(self) -> int:
        self._data.mkdir(parents=True, exist_ok=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._nonblocking(self._woken), warn_on_full_buffer=False)
        try:
            if self._start_all():
                addresses = ",".join(f"127.0.0.1:{broker.port}" for broker in self._brokers)
                click.echo(f"tidelog is up: {addresses}   data: {self._data}   stop: Ctrl-C")
                self._watch()
        finally:
            self._stop_all()
        return 1 if self._failed else 0

    @staticmethod
    def _nonblocking(fd: int) -> int:
        os.set_blocking(fd, False)
        return fd

    def _on_signal(self, *_: object) -> None:
        self._told_to_stop = True

    # Start

    def _start_all(self) -> bool:
        waiting = {broker.start(): broker for broker in self._brokers}
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            for fd in waiting:
                selector.register(fd, selectors.EVENT_READ)
            deadline = time.monotonic() + _START_S
            while waiting and not self._told_to_stop:
                for key, _ in selector.select(max(deadline - time.monotonic(), 0.0)):
                    if key.fd == self._wake:
                        os.read(self._wake, 4096)
                        continue
                    selector.unregister(key.fd)
                    broker = waiting.pop(key.fd)
                    if not self._is_ready(broker, key.fd):
                        self._failed = not self._told_to_stop
                        return False
                if waiting and time.monotonic() >= deadline:
                    for late in waiting.values():
                        click.echo(f"broker {late.number} is not ready after {_START_S:.0f} s:", err=True)
                        click.echo(late.last_words(), err=True)
                    self._failed = True
                    return False
        return not self._told_to_stop

    def _is_ready(self, broker: _BrokerProcess, fd: int, again: str = "") -> bool:
        told = os.read(fd, 65536)
        os.close(fd)
        if told:
            ports = ", ".join(f"{name} {port}" for name, port in json.loads(told).items())
            click.echo(f"broker {broker.number} is ready{again}: {ports}")
            return True
        if not self._told_to_stop:
            click.echo(f"broker {broker.number} did not start:\n{broker.last_words()}", err=True)
            self._failed = self._failed or not self._restart
        return False

    # Watch

    def _watch(self) -> None:
        starting: dict[int, _BrokerProcess] = {}
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            while not self._told_to_stop:
                for fd, broker in self._look_after():
                    starting[fd] = broker
                    selector.register(fd, selectors.EVENT_READ)
                if not any(broker.process or broker.restart_at for broker in self._brokers):
                    click.echo("no broker is left", err=True)
                    self._failed = True
                    return
                due = [broker.restart_at for broker in self._brokers if broker.restart_at is not None]
                wait = max(min(due) - time.monotonic(), 0.0) if due else None
                for key, _ in selector.select(wait):
                    if key.fd == self._wake:
                        os.read(self._wake, 4096)
                    else:
                        selector.unregister(key.fd)
                        self._is_ready(starting.pop(key.fd), key.fd, " again")

    def _look_after(self) -> list[tuple[int, _BrokerProcess]]:
        """Report who died, start again whose time has come; with the descriptors that tell when they are ready."""
        started = []
        for broker in self._brokers:
            process = broker.process
            if process is not None and process.poll() is not None:
                broker.process = None
                self._report(broker, process.returncode)
            if broker.restart_at is not None and time.monotonic() >= broker.restart_at:
                broker.restart_at = None
                started.append((broker.start(), broker))
        return started

    def _report(self, broker: _BrokerProcess, status: int) -> None:
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        click.echo(f"broker {broker.number} {how}; its log is {broker.log_file}", err=True)
        if self._restart:
            broker.restart_at = time.monotonic() + _RESTART_S
        else:
            self._failed = True

    # Stop

    def _stop_all(self) -> None:
        running = [broker for broker in self._brokers if broker.process is not None]
        for broker in running:
            assert broker.process is not None
            broker.process.terminate()
        deadline = time.monotonic() + _STOP_S
        for broker in running:
            assert broker.process is not None
            try:
                status = broker.process.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                broker.process.kill()
                status = broker.process.wait()
            if status != 0:
                self._failed = True
                click.echo(f"broker {broker.number} did not stop cleanly; its log is {broker.log_file}", err=True)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\")

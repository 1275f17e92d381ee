"""Broker processes under supervision: started together, watched, stopped together."""

from __future__ import annotations

import datetime
import json
import os
import selectors
import signal
import time
from collections.abc import Callable
from pathlib import Path

import click

from tidelog.cli.broker_process import BrokerProcess
from tidelog.cli.data_directory import DataDirectory, Running, write_json

_START_S = 60.0
_STOP_S = 60.0
_RESTART_S = 1.0


class Supervisor:
    """Ends with status 0 after Ctrl-C or SIGTERM and a clean stop, with 1 if a broker failed.

    `tell_ready` is called once, when all brokers are ready.
    """

    def __init__(
        self,
        directory: DataDirectory,
        brokers: list[BrokerProcess],
        shown_host: str,
        *,
        restart: bool,
        tell_ready: Callable[[Running], None],
    ) -> None:
        self._directory = directory
        self._brokers = brokers
        self._shown_host = shown_host
        self._restart = restart
        self._tell_ready = tell_ready
        self._since = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = os.pipe()
        self._signals = 0
        self._is_interrupted = False
        self._failed = False

    def run(self) -> int:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for end in (self._wake, self._woken):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        self._selector.register(self._wake, selectors.EVENT_READ)
        try:
            if self._start_all():
                self._watch()
        finally:
            self._stop_all()
        return 1 if self._failed else 0

    def _on_signal(self, number: int, *_: object) -> None:
        self._signals += 1
        self._is_interrupted |= number == signal.SIGINT

    @property
    def _is_told_to_stop(self) -> bool:
        return self._signals > 0

    # Start

    def _start_all(self) -> bool:
        for broker in self._brokers:
            self._start(broker)
        deadline = time.monotonic() + _START_S
        while not self._is_told_to_stop and any(broker.ready_fd >= 0 for broker in self._brokers):
            self._look(max(deadline - time.monotonic(), 0.0))
            if any(broker.process is None for broker in self._brokers):
                self._failed = not self._is_told_to_stop
                return False
            late = [broker for broker in self._brokers if broker.ready_fd >= 0]
            if late and time.monotonic() >= deadline:
                for broker in late:
                    click.echo(
                        f"broker {broker.number} is not ready after {_START_S:.0f} s: {broker.reason()}", err=True
                    )
                self._failed = True
                return False
        if self._is_told_to_stop:
            return False
        running = self._tell()
        self._tell_ready(running)
        return True

    def _start(self, broker: BrokerProcess) -> None:
        broker.start()
        for end in (broker.ready_fd, broker.warnings_fd):
            self._selector.register(end, selectors.EVENT_READ, broker)

    def _tell(self) -> Running:
        brokers = tuple(broker.described(self._shown_host) for broker in self._brokers if broker.process is not None)
        running = Running(os.getpid(), self._since, brokers)
        self._directory.tell(running)
        return running

    # Watch

    def _watch(self) -> None:
        while not self._is_told_to_stop:
            if not any(broker.process or broker.restart_at for broker in self._brokers):
                click.echo("no broker is left", err=True)
                self._failed = True
                return
            due = [broker.restart_at for broker in self._brokers if broker.restart_at is not None]
            self._look(max(min(due) - time.monotonic(), 0.0) if due else None)
            for broker in self._brokers:
                if broker.restart_at is not None and time.monotonic() >= broker.restart_at:
                    broker.restart_at = None
                    self._start(broker)

    def _look(self, wait_s: float | None) -> None:
        """Wait for something to happen: a signal, a broker that is ready or warns, or one that ends."""
        for key, _ in self._selector.select(wait_s):
            if key.fd == self._wake:
                os.read(self._wake, 4096)
            elif key.fd == key.data.ready_fd:
                self._hear_ready(key.data)
            else:
                self._show_warnings(key.data)
        for broker in self._brokers:
            if broker.process is not None and broker.process.poll() is not None:
                self._report_end(broker)

    def _hear_ready(self, broker: BrokerProcess) -> None:
        """It is ready, or it has ended before it was."""
        told = os.read(broker.ready_fd, 65536)
        self._close(broker.ready_fd)
        broker.ready_fd = -1
        if told:
            is_again = bool(broker.ports)
            broker.listens(json.loads(told))
            ports = ", ".join(f"{name} {port}" for name, port in broker.ports.items())
            click.echo(f"broker {broker.number} is ready{' again' if is_again else ''}: {ports}")
            if is_again:
                self._tell()

    def _show_warnings(self, broker: BrokerProcess) -> None:
        for line in broker.warnings():
            click.echo(f"broker {broker.number}: {line}", err=True)

    def _close(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)

    def _report_end(self, broker: BrokerProcess) -> None:
        was_ready = broker.is_ready
        status = self._end(broker)
        if self._is_told_to_stop:
            return
        if self._restart and broker.ports:
            broker.restart_at = time.monotonic() + _RESTART_S
        if was_ready and status == 0:
            click.echo(f"broker {broker.number} was stopped{self._how_to_start(broker)}")
            return
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        how = how if was_ready else "did not start"
        reason = f": {broker.reason()}" if status >= 0 and broker.reason() else ""
        hint = self._how_to_start(broker) if was_ready else ""
        click.echo(f"broker {broker.number} {how}{reason}; its log is {broker.log_file}{hint}", err=True)
        if broker.restart_at is None:
            self._failed = True

    def _how_to_start(self, broker: BrokerProcess) -> str:
        if broker.restart_at is not None:
            return "; it is started again"
        return f". This brings it back: {broker.command_by_hand}"

    def _end(self, broker: BrokerProcess) -> int:
        """Take in the last words of a process that has ended."""
        self._show_warnings(broker)
        self._close(broker.warnings_fd)
        broker.warnings_fd = -1
        if broker.ready_fd >= 0:
            self._close(broker.ready_fd)
            broker.ready_fd = -1
        return broker.ended()

    # Stop

    def _stop_all(self) -> None:
        running = [broker for broker in self._brokers if broker.process is not None]
        if running and self._is_told_to_stop:
            brokers = "the broker" if len(running) == 1 else f"{len(running)} brokers"
            click.echo(f"stopping {brokers}; a second Ctrl-C kills what is left")
        for broker in running:
            assert broker.process is not None
            broker.process.terminate()
        failed_before = self._failed
        deadline, signals = time.monotonic() + _STOP_S, self._signals
        while any(broker.process is not None for broker in running):
            if time.monotonic() >= deadline or self._signals > max(signals, 1):
                self._kill([broker for broker in running if broker.process is not None])
            self._look_at_ends(running, min(1.0, max(deadline - time.monotonic(), 0.0)))
        self._directory.tell_stopped()
        if running and self._failed == failed_before and (self._is_told_to_stop or not self._failed):
            click.echo("stopped")
        if self._is_interrupted:
            self._tell_who_goes_on()

    def _tell_who_goes_on(self) -> None:
        """All children have ended, so who still uses the directory was started by hand. `down` stops these itself."""
        by_hand = self._directory.by_hand()
        if by_hand:
            numbers = " and ".join(str(broker.broker) for broker in by_hand)
            who = f"broker {numbers}, which was" if len(by_hand) == 1 else f"brokers {numbers}, which were"
            goes = "goes" if len(by_hand) == 1 else "go"
            advice = f"`tidelog down --data {self._directory.path}` stops {'it' if len(by_hand) == 1 else 'them'}"
            click.echo(f"{who} started by hand, {goes} on; {advice}")

    def _look_at_ends(self, running: list[BrokerProcess], wait_s: float) -> None:
        for key, _ in self._selector.select(wait_s):
            if key.fd == self._wake:
                os.read(self._wake, 4096)
            elif key.fd == key.data.warnings_fd:
                self._show_warnings(key.data)
            else:
                self._close(key.fd)
                key.data.ready_fd = -1
        for broker in running:
            if broker.process is not None and broker.process.poll() is not None:
                status = self._end(broker)
                is_early = status == -signal.SIGTERM and not broker.ports
                if status != 0 and not is_early:  # it had not begun: there was nothing to put in order
                    self._failed = True
                    click.echo(f"broker {broker.number} did not stop cleanly; its log is {broker.log_file}", err=True)

    def _kill(self, left: list[BrokerProcess]) -> None:
        for broker in left:
            assert broker.process is not None
            broker.process.kill()


def write_ready_file(path: str, running: Running) -> None:
    write_json(Path(path), running.as_json())

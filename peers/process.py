"""Java processes: started with a condition for being ready, stopped cleanly or killed, and never left behind."""

from __future__ import annotations

import ctypes
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Self

from peers import home

SMALL_JVM = ("-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""Quick to start and modest with memory; a benchmark passes the options its peer would be run with."""

_READY_DEADLINE_S = 90.0
_STOP_DEADLINE_S = 30.0
_POLL_S = 0.02
_SHOWN_LINES = 25
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class PeerFailedError(Exception):
    """A peer died, did not become ready in time or refused; the message ends with what it printed last."""


def free_port() -> int:
    """A loopback port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def java_command(version: str, main: str, arguments: Sequence[str], jvm_options: Sequence[str]) -> list[str]:
    return [home.program("java"), *jvm_options, "-cp", home.classpath(version), main, *arguments]


class Printed(NamedTuple):
    """What a main printed, by stream."""

    out: str
    err: str


def run_java(
    version: str, main: str, arguments: Sequence[str] = (), *, given: str | None = None, deadline_s: float = 120.0
) -> Printed:
    """Run a main to its end. PeerFailedError if it ends with another status than 0."""
    command = java_command(version, main, arguments, SMALL_JVM)
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=deadline_s, check=False)
    if done.returncode != 0:
        raise PeerFailedError(f"{main} ended with status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return Printed(done.stdout, done.stderr)


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class JavaServer:
    """One long-running Java process and the file it prints to.

    A context manager: entered it is ready, left it is stopped. It may be started again after a stop or a kill.
    """

    def __init__(
        self,
        version: str,
        main: str,
        arguments: Sequence[str],
        *,
        directory: Path,
        jvm_options: Sequence[str] = SMALL_JVM,
    ) -> None:
        self.version = version
        self.directory = directory
        self.output_file = directory / f"{main.rpartition('.')[2]}.out"
        self._main = main
        self._arguments = arguments
        self._jvm_options = jvm_options
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None

    def is_ready(self) -> bool:
        """Whether a client would be served now."""
        raise NotImplementedError

    def start(self, deadline_s: float = _READY_DEADLINE_S) -> None:
        """Returns when it is ready."""
        assert self._process is None, "already started"
        self.directory.mkdir(parents=True, exist_ok=True)
        command = java_command(self.version, self._main, self._arguments, self._jvm_options)
        self._output = self.output_file.open("wb")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            preexec_fn=_die_with_parent,
        )
        self.wait_until(self.is_ready, "to be ready", deadline_s)

    def stop(self, deadline_s: float = _STOP_DEADLINE_S) -> None:
        """Ask it to end; one that does not in time is killed, which is an error."""
        if self._process is None:
            return
        process = self._process
        process.terminate()
        try:
            process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self._failed(f"did not stop within {deadline_s} s") from None
        self._forget()

    def kill(self) -> None:
        """End it as a crash would (kill -9)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget()

    def output(self) -> str:
        return self.output_file.read_text(errors="replace") if self.output_file.exists() else ""

    def wait_until(self, condition: Callable[[], bool], what: str, deadline_s: float = _READY_DEADLINE_S) -> None:
        give_up_at = time.monotonic() + deadline_s
        while not condition():
            if self._process is None or self._process.poll() is not None:
                failure = self._failed(f"ended while we waited for it {what}")
                self._forget()
                raise failure
            if time.monotonic() > give_up_at:
                raise self._failed(f"took more than {deadline_s} s {what}")
            time.sleep(_POLL_S)

    def wait_for_line(self, pattern: str, deadline_s: float = _READY_DEADLINE_S) -> None:
        """Until a line of its output matches."""
        line = re.compile(pattern)
        self.wait_until(lambda: line.search(self.output()) is not None, f"to print {pattern!r}", deadline_s)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
            return
        error.add_note(f"--- the end of {self.output_file.name}\n{self._last_lines()}")
        self.kill()

    def _failed(self, what: str) -> PeerFailedError:
        return PeerFailedError(f"{self._main} {self.version} {what}\n{self._last_lines()}")

    def _last_lines(self) -> str:
        return "\n".join(self.output().splitlines()[-_SHOWN_LINES:])

    def _forget(self) -> None:
        self._process = None
        if self._output is not None:
            self._output.close()
            self._output = None

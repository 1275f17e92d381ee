"""A client in another language: a process that takes one JSON request per line and answers each with one line."""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from peers.process import PeerFailedError

Json = dict[str, Any]
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_STOP_DEADLINE_S = 30.0


def die_with_parent() -> None:
    """For preexec_fn: nothing that a test started outlives it, however it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Shell:
    """Started at once; ends when its standard input does. What it prints to standard error is the test's."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,
        )

    def ask(self, request: Mapping[str, Any]) -> Json:
        """Its answer, which may be an error of the client's: {"error": code, "message": text}."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise PeerFailedError(f"{self._process.args!r} ended with status {self._process.wait(_STOP_DEADLINE_S)}")
        answer: Json = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

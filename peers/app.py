"""An application of somebody else's in a process of its own, asked to end as a service manager would."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from peers.process import PeerFailedError
from peers.shell import die_with_parent

_STOP_DEADLINE_S = 20.0
_SHOWN_LINES = 25


def _as_if_from_a_terminal() -> None:
    """Ctrl-C counts, also when the tests run in the background of a shell, which ignores it for what it starts."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class App:
    """A context manager: entered it is started, left it has ended. What it prints is kept in a file."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], output_file: Path) -> None:
        self._output_file = output_file
        with output_file.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=output_file.parent,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=_as_if_from_a_terminal,
            )

    def check(self) -> None:
        """PeerFailedError if it has ended, and not well."""
        if self._process.poll() not in (None, 0):
            raise self._failed(f"ended with status {self._process.returncode}")

    def stop(self) -> None:
        """Ask it to end, which it has to do well and in time."""
        self._process.terminate()
        self.wait()

    def interrupt(self) -> None:
        """As Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)
        self.wait()

    def wait(self, deadline_s: float = _STOP_DEADLINE_S) -> None:
        """Until it ends by itself."""
        try:
            self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self._failed(f"did not end within {deadline_s} s") from None
        self.check()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def output(self) -> str:
        return self._output_file.read_text(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"--- the end of what the application printed\n{self._last_lines()}")
            self.kill()
        elif self._process.poll() is None:
            self.stop()

    def _failed(self, what: str) -> PeerFailedError:
        return PeerFailedError(f"{self._process.args!r} {what}\n{self._last_lines()}")

    def _last_lines(self) -> str:
        return "\n".join(self.output().splitlines()[-_SHOWN_LINES:])

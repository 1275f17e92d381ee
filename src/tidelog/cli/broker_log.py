"""Where a broker process writes its log: to the terminal, or to a file that is rotated, with warnings passed on."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from typing import Any

_MAX_BYTES = 16 * 1024 * 1024
_KEPT_FILES = 4
_MOST_WITHOUT_ROTATION = 4
"""How many times as large a file may become that cannot be rotated. Then lines are dropped."""
_LONGEST_LINE = 2_000
"""Of a line that is passed on. Lines of up to 4096 bytes are written to a pipe whole or not at all."""
_LONGEST_MESSAGE = 16_000
"""Characters of a line in the log, without a traceback."""
_BURST = 300
_PER_SECOND = 20
"""Lines at INFO of one logger: so many at once, and so many in a second for long."""


class _LogFile(RotatingFileHandler):
    """The log file. What is printed to stdout and stderr, by the C library too, goes to the same file.

    A line that cannot be written is lost, and nothing else: the broker goes on without a log, and with it again when
    there is room. A file that cannot be rotated, say in a directory that is read-only, is written on up to a bound.
    """

    def _open(self) -> TextIOWrapper:
        stream = super()._open()
        for descriptor in (sys.stdout.fileno(), sys.stderr.fileno()):
            os.dup2(stream.fileno(), descriptor)
        return stream

    def doRollover(self) -> None:  # noqa: N802 - logging's name
        try:
            super().doRollover()
        except OSError:
            if self.stream is None:
                self.stream = self._open()  # the one that there was
            if self.stream.tell() > _MOST_WITHOUT_ROTATION * self.maxBytes:
                raise

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """A traceback of it would go to the same file, line by line."""


class _Budget(logging.Filter):
    """Lines at INFO that come too fast are left out, and the next one says how many. Whoever raises a logger to DEBUG
    wants all that it says, and warnings are never left out."""

    def __init__(self) -> None:
        super().__init__()
        self._left: dict[str, tuple[float, float]] = {}
        """Of each logger: how many lines it had left, and when."""
        self._left_out: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        name = record.name
        if record.levelno != logging.INFO or logging.getLogger(name).isEnabledFor(logging.DEBUG):
            return True
        left, at = self._left.get(name, (float(_BURST), record.created))
        left = min(left + max(record.created - at, 0.0) * _PER_SECOND, float(_BURST))
        if left < 1:
            self._left[name] = left, record.created
            self._left_out[name] = self._left_out.get(name, 0) + 1
            return False
        self._left[name] = left - 1, record.created
        left_out = self._left_out.pop(name, 0)
        if left_out:
            record.msg = f"{record.getMessage()} [{left_out} lines of this logger before this one were left out]"
            record.args = None
        return True


class _OneLine(logging.Formatter):
    """A message is one line, whatever is in it: names that a client chose must not look like lines of their own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        message = record.message
        if len(message) > _LONGEST_MESSAGE:
            message = f"{message[:_LONGEST_MESSAGE]}... ({len(message)} characters)"
        record.message = one_line(message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """The text of an exception may name what a client chose, too. The lines of a traceback are indented."""
        text = super().formatException(ei)
        return "\n".join(f"  {one_line(line)}" for line in text.split("\n"))


def one_line(text: str) -> str:
    """Control characters as Python writes them; other characters stay, also those of other alphabets."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


class _Passed(logging.Handler):
    """Passes warnings on to whoever supervises this process. If that process does not read, they are dropped."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(logging.WARNING)
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.levelname.lower()}: {record.getMessage()}".replace("\n", " ")
        with contextlib.suppress(OSError):
            os.write(self._descriptor, one_line(text).encode("utf-8", "backslashreplace")[:_LONGEST_LINE] + b"\n")


def set_up(broker: int, level: str, file: str | None, warnings_fd: int | None) -> None:
    """OSError if the file cannot be written."""
    written: logging.Handler = (
        logging.StreamHandler(sys.stderr)
        if file is None
        else _LogFile(file, maxBytes=_MAX_BYTES, backupCount=_KEPT_FILES, encoding="utf-8", errors="backslashreplace")
    )
    written.addFilter(_Budget())
    written.setFormatter(_OneLine(f"%(asctime)s %(levelname)s [broker {broker}] %(message)s (%(name)s)"))
    handlers = [written]
    if warnings_fd is not None:
        handlers.append(_Passed(warnings_fd))
    logging.basicConfig(level=level, handlers=handlers)

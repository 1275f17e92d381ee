"""Where a broker process writes its log: to the terminal, or to a file that is rotated, with warnings passed on."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler

_MAX_BYTES = 16 * 1024 * 1024
_KEPT_FILES = 4
_LONGEST_LINE = 2_000
"""Of a line that is passed on. Lines of up to 4096 bytes are written to a pipe whole or not at all."""


class _LogFile(RotatingFileHandler):
    """The log file. What is printed to stdout and stderr, by the C library too, goes to the same file."""

    def _open(self) -> TextIOWrapper:
        stream = super()._open()
        for descriptor in (sys.stdout.fileno(), sys.stderr.fileno()):
            os.dup2(stream.fileno(), descriptor)
        return stream


class _Passed(logging.Handler):
    """Passes warnings on to whoever supervises this process. If that process does not read, they are dropped."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(logging.WARNING)
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.levelname.lower()}: {record.getMessage()}".replace("\n", " ")
        with contextlib.suppress(OSError):
            os.write(self._descriptor, text.encode("utf-8", "backslashreplace")[:_LONGEST_LINE] + b"\n")


def set_up(broker: int, level: str, file: str | None, warnings_fd: int | None) -> None:
    """OSError if the file cannot be written."""
    handlers: list[logging.Handler] = [
        logging.StreamHandler(sys.stderr)
        if file is None
        else _LogFile(file, maxBytes=_MAX_BYTES, backupCount=_KEPT_FILES, encoding="utf-8")
    ]
    if warnings_fd is not None:
        handlers.append(_Passed(warnings_fd))
    form = f"%(asctime)s %(levelname)s [broker {broker}] %(message)s (%(name)s)"
    logging.basicConfig(level=level, format=form, handlers=handlers)

"""One run of a pipeline at a time: two would write the same checkpoints and the same catalog."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time  # noqa: TID251  a command waits, outside of any loop
from collections.abc import Iterator
from pathlib import Path

from tidelog.pipeline.errors import PipelineError

_PATIENCE_S = 60.0
"""For Spark's driver of a run that was killed: it ends some seconds after, and writes checkpoints until then."""
_POLL_S = 0.1


@contextlib.contextmanager
def locked(path: Path, pipeline: str, patience_s: float = _PATIENCE_S) -> Iterator[int]:
    """Gives the descriptor that holds the lock. PipelineError, with the process that runs it, while another run does.

    The kernel gives the lock back when the last process that has the descriptor ends, however it ends. Spark's driver
    inherits it, so a run that was killed holds the lock until its driver is gone, and that is waited for. The file
    stays: removing it would let two processes lock two files of one name.
    """
    descriptor = _opened(path)
    try:
        deadline = time.monotonic() + patience_s
        while not _is_taken(descriptor, path):
            holder = _holder(descriptor)
            if holder is None or is_alive(holder):
                raise PipelineError(_run_by(path, pipeline, holder))
            if time.monotonic() >= deadline:
                raise PipelineError(
                    f"pipeline {pipeline} was run by process {holder}, which is gone, and Spark, which it started, is "
                    f"not: end the process that holds {path}"
                )
            time.sleep(_POLL_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as failure:
        raise PipelineError(f"the lock {path} cannot be opened: {failure.strerror}") from failure


def _is_taken(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as failure:
        raise PipelineError(f"{path} cannot be locked: {failure.strerror}") from failure
    return True


def _holder(descriptor: int) -> int | None:
    """The process that took the lock; None if it has not said so yet."""
    text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
    return int(text) if text.isdecimal() else None


def _run_by(path: Path, pipeline: str, holder: int | None) -> str:
    who = "another process" if holder is None else f"process {holder}"
    return f"pipeline {pipeline} is run by {who}, which holds {path}: wait for its end, see `tidelog pipeline status`"


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True

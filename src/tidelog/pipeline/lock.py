"""One run of a pipeline at a time: two would write the same checkpoints and the same catalog."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from tidelog.pipeline.errors import PipelineError


@contextlib.contextmanager
def locked(path: Path, pipeline: str) -> Iterator[None]:
    """PipelineError, with the process that runs it, while another run holds the lock.

    The kernel gives the lock back with the process, however it ends. The file stays: removing it would let two
    processes lock two files of one name. Processes that a run starts do not inherit the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            who = f"process {holder}" if holder.isdecimal() else "another process"
            raise PipelineError(
                f"pipeline {pipeline} is run by {who}: wait for its end, see `tidelog pipeline status`"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)

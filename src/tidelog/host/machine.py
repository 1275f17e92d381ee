"""The three ports of a real process."""

from __future__ import annotations

from tidelog.host.clock import SystemClock, system_random
from tidelog.host.disk import DEFAULT_IO_THREADS, RealDisk
from tidelog.host.limits import raise_open_file_limit


class RealPorts:
    """This machine, as the code under it sees it. Made once, at the start of a process; closed at its end."""

    def __init__(self, *, num_io_threads: int = DEFAULT_IO_THREADS, max_open: int | None = None) -> None:
        self.open_file_limit = raise_open_file_limit()
        self.clock = SystemClock()
        self.random = system_random()
        self.disk = RealDisk(max_open=max_open, num_io_threads=num_io_threads)

    def close(self) -> None:
        self.disk.close()

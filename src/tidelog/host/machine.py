"""The three ports of a real process."""

from __future__ import annotations

from tidelog.host.clock import SystemClock, system_random
from tidelog.host.disk import DEFAULT_IO_THREADS, RealDisk
from tidelog.host.limits import memory_bytes, raise_open_file_limit, shares
from tidelog.ports import Capacity

_LINUX_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class RealPorts:
    """This machine, as the code under it sees it. Made once, at the start of a process; closed at its end."""

    def __init__(self, *, num_io_threads: int = DEFAULT_IO_THREADS, max_open: int | None = None) -> None:
        self.open_file_limit = raise_open_file_limit()
        self.clock = SystemClock()
        self.random = system_random()
        self.disk = RealDisk(max_open=max_open, num_io_threads=num_io_threads)
        self.boot_id = read_boot_id()
        _, clients, brokers = shares(self.open_file_limit)
        self.capacity = Capacity(clients, brokers, memory_bytes())

    def close(self) -> None:
        self.disk.close()


def read_boot_id() -> str:
    """What Linux calls the boot id; empty on a system that has none there."""
    try:
        with open(_LINUX_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""

"""How many files this process may have open, who gets which share of them, and how much memory there is."""

from __future__ import annotations

import os
import resource
from typing import NamedTuple

_UNLIMITED = 1 << 20
"""What `unlimited` is taken for: the kernel's own ceiling for one process (fs.nr_open) is about this."""
_OWN = 56
"""For the process itself: its loop, its coordination store, its locks and its connections to other brokers, and a
file or two that each disk thread opens past the pool."""
_SMALLEST_SHARE = 16
_MOST_FOR_ACCEPTING = 64
_MOST_FOR_BROKERS = 256
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class Shares(NamedTuple):
    """Of the file descriptors."""

    log_files: int
    client_connections: int
    broker_connections: int


def raise_open_file_limit() -> int:
    """Lift the soft limit to the hard one, which needs no privilege, and return what now holds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # an unlimited hard limit can be above the kernel's ceiling
            return _count(soft)
    return _count(hard)


def open_file_limit() -> int:
    return _count(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def shares(limit: int) -> Shares:
    """What the process does not need for itself goes half to log files and half to connections.

    Connections that are being refused have a descriptor until the loop turns again, so some are left for these too.
    """
    rest = limit - _OWN - min(_MOST_FOR_ACCEPTING, limit // 8)
    log_files = max(_SMALLEST_SHARE, rest // 2)
    connections = max(_SMALLEST_SHARE, rest - log_files)
    brokers = min(_MOST_FOR_BROKERS, connections // 4)
    return Shares(log_files, connections - brokers, brokers)


def memory_bytes() -> int:
    """Of the machine, or of the control group that this process may not exceed."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUP_LIMITS:
        try:
            with open(path, encoding="ascii") as file:
                found.append(int(file.read()))
        except (OSError, ValueError):  # there is none, or it says "max"
            continue
    return min(found)


def _count(limit: int) -> int:
    return _UNLIMITED if limit == resource.RLIM_INFINITY else limit

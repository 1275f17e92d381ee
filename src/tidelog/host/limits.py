"""How many files this process may have open, who gets which share of them, and how much memory there is."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from typing import NamedTuple

_UNLIMITED = 1 << 20
"""What `unlimited` is taken for: the kernel's own ceiling for one process (fs.nr_open) is about this."""
_OWN = 56
"""For the process itself: its loop, its coordination store, its locks and its connections to other brokers, and a
file or two that each disk thread opens past the pool."""
_SMALLEST_SHARE = 16
_MOST_FOR_ACCEPTING = 64
_MOST_FOR_BROKERS = 256
_OWN_GROUPS = "proc/self/cgroup"
_VERSION_2 = "sys/fs/cgroup", "memory.max"
_VERSION_1 = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
"""Where the control groups for memory are mounted, and what the file of a limit is called."""


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


def memory_bytes(root: str = "/") -> int:
    """Of the machine, or of the control group of this process, or of one above it: the smallest limit holds."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _memory_limits(root):
        try:
            found.append(int(_text(path)))
        except (OSError, ValueError):  # there is none, or it says "max"
            continue
    return min(found)


def _memory_limits(root: str) -> Iterator[str]:
    """The files with the limits of the own control group and those above it. In a container only the beginning of its
    path may be mounted, often nothing but the root."""
    for (mount, name), path in _control_groups(root):
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        for depth in range(len(parts) + 1):
            yield os.path.join(root, mount, *parts[:depth], name)


def _control_groups(root: str) -> Iterator[tuple[tuple[str, str], str]]:
    """The kind and the path of each control group of this process that limits memory; lines are
    `number:controllers:path`, and version 2 names no controllers."""
    try:
        lines = _text(os.path.join(root, _OWN_GROUPS)).splitlines()
    except OSError:
        lines = ["0::/", "1:memory:/"]
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon and (not controllers or "memory" in controllers.split(",")):
            yield _VERSION_1 if controllers else _VERSION_2, path


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def _count(limit: int) -> int:
    return _UNLIMITED if limit == resource.RLIM_INFINITY else limit

"""Which process listens on a port of this machine, as Linux tells it."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path

_LISTENS = "0A"


def is_free(host: str, port: int) -> bool:
    """Whether this process could listen there now."""
    try:
        _bind(host, port)
    except (OSError, UnicodeError):  # of a host that cannot be a name
        return False
    return True


def why_not_here(host: str) -> str | None:
    """Why nothing can listen there, whatever the port; None if something can."""
    try:
        _bind(host, 0)
    except socket.gaierror:
        return "no address is known for this name"
    except UnicodeError:
        return "it cannot be a name"
    except OSError as failure:
        is_foreign = failure.errno == errno.EADDRNOTAVAIL
        return "it is no address of this machine" if is_foreign else os.strerror(failure.errno or 0)
    return None


def _bind(host: str, port: int) -> None:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def listener(port: int) -> int | None:
    """The id of the process that listens on the port; None if it cannot be seen."""
    inodes = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _inodes(Path("/proc/net") / table, port)}
    for process in Path("/proc").iterdir() if inodes else ():
        if process.name.isdecimal() and _has_one_of(process / "fd", inodes):
            return int(process.name)
    return None


def _inodes(table: Path, port: int) -> list[str]:
    with contextlib.suppress(OSError):
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
        return [row[9] for row in rows if row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port]
    return []


def _has_one_of(descriptors: Path, inodes: set[str]) -> bool:
    with contextlib.suppress(OSError):
        for descriptor in descriptors.iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(descriptor) in inodes:
                    return True
    return False

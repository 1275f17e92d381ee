"""How many files this process may have open."""

from __future__ import annotations

import resource

_SMALLEST_POOL = 16
_UNLIMITED = 1 << 20
"""What `unlimited` is taken for: the kernel's own ceiling for one process (fs.nr_open) is about this."""


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


def share_for_log_files() -> int:
    """Half of the limit: the other half stays for connections, and for files opened past the pool."""
    return max(_SMALLEST_POOL, open_file_limit() // 2)


def _count(limit: int) -> int:
    return _UNLIMITED if limit == resource.RLIM_INFINITY else limit

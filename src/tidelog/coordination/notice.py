"""How a thread sleeps until a file has grown, or another thread of this process rings.

The kernel tells of writes by inotify: no wait, and no cost while nothing happens. Where inotify is not available (its
limit of watches is reached, say) the thread looks every few milliseconds instead.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import threading  # noqa: TID251  behind the Coordination port

_LOOK_S = 0.005
_IN_MODIFY = 2

_log = logging.getLogger(__name__)


class Notice:
    """`wait`, `watch` and `close` belong to one thread, `ring` to all others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._inotify = -1
        self._longest_sleep_s = float("inf")
        self._poll = select.poll()
        self._poll.register(self._bell, select.POLLIN)

    def watch(self, path: str) -> None:
        """Wake at writes to this file, and no longer at writes to the one before."""
        self._forget()
        libc = ctypes.CDLL(None, use_errno=True)
        inotify = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if inotify >= 0 and libc.inotify_add_watch(inotify, os.fsencode(path), _IN_MODIFY) >= 0:
            self._inotify = inotify
            self._longest_sleep_s = float("inf")
            self._poll.register(inotify, select.POLLIN)
            return
        reason = os.strerror(ctypes.get_errno())
        if inotify >= 0:
            os.close(inotify)
        self._longest_sleep_s = _LOOK_S
        _log.warning("no inotify for %s, looking every %d ms instead: %s", path, _LOOK_S * 1e3, reason)

    def ring(self) -> None:
        with self._lock:
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    def wait(self, patience_s: float) -> None:
        for descriptor, _ in self._poll.poll(min(patience_s, self._longest_sleep_s) * 1e3):
            os.read(descriptor, 4096)

    def close(self) -> None:
        self._forget()
        with self._lock:
            os.close(self._bell)
            self._bell = -1

    def _forget(self) -> None:
        if self._inotify >= 0:
            self._poll.unregister(self._inotify)
            os.close(self._inotify)
            self._inotify = -1

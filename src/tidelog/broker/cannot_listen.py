"""A port that a broker was told to listen on, and cannot."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable

from tidelog.errors import TidelogError


class CannotListenError(TidelogError):
    """`setting` names the port; `cause` is what the machine says."""

    def __init__(self, setting: str, host: str, port: int, cause: OSError) -> None:
        self.setting, self.host, self.port, self.cause = setting, host, port, cause
        super().__init__(f"port {port} of {host or 'this machine'}, in {setting}, cannot be listened on: {cause}")


async def bound(setting: str, host: str, port: int, listen: Callable[[str, int], Awaitable[int]]) -> int:
    """The port that `listen` got."""
    try:
        return await listen(host, port)
    except OSError as failure:
        raise CannotListenError(setting, host, port, failure) from failure


def told(failure: CannotListenError, listener: Callable[[int], int | None]) -> str:
    """One sentence for a user. `listener` finds the process that listens on a port."""
    where = f"port {failure.port} of {failure.host or 'this machine'}"
    number = failure.cause.errno
    if number == errno.EADDRINUSE:
        process = listener(failure.port)
        why = "is in use" if process is None else f"is in use by process {process}"
        return f"{where} {why}; end it, or name another port in {failure.setting}"
    reasons = {errno.EADDRNOTAVAIL: "it is no address of this machine", errno.EACCES: "only root may use this port"}
    reason = reasons.get(number or 0) or (os.strerror(number) if number and number > 0 else str(failure.cause))
    return f"{where} cannot be listened on: {reason}; name another in {failure.setting}"

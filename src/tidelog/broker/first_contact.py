"""What a broker says while it starts and its coordination store does not answer: for whom it waits, and why."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from tidelog.config.broker import BrokerConfig

_log = logging.getLogger(__name__)

TELL_AFTER_S = 2.0
_PATIENCE_S = 1.0
_DEFAULT_PORT = 2181


async def tell_of_waiting(config: BrokerConfig, is_met: Callable[[], bool]) -> None:
    """Once, if the store was not met after 2 s. `Membership` says so again when it begins anew."""
    if config["tidelog.coordination"] != "zookeeper":
        return
    await asyncio.sleep(TELL_AFTER_S)
    if is_met():
        return
    connect = config["zookeeper.connect"]
    servers = [server.strip() for server in connect.partition("/")[0].split(",") if server.strip()]
    reasons = await asyncio.gather(*(why_unmet(server) for server in servers))
    if not is_met():
        _log.warning("waiting for ZooKeeper at %s (zookeeper.connect): %s", connect, "; ".join(dict.fromkeys(reasons)))


async def why_unmet(server: str) -> str:
    """Why HOST:PORT opens no session, as far as a connection tells."""
    host, colon, port = server.rpartition(":")
    if not colon or not port.isdecimal():
        host, port = server, str(_DEFAULT_PORT)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except TimeoutError:
        return f"{server} does not answer"
    except (ValueError, OverflowError):
        return f"{server} is no HOST:PORT"
    except OSError as failure:
        number = failure.errno or 0
        return f"{server}: {os.strerror(number) if number > 0 else 'no address is known for this name'}"
    writer.close()
    return f"{server} takes connections, but opens no session"

"""A ZooKeeper server: the one among Kafka 3.9.1's own jars."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kazoo.client import KazooClient

from peers import home
from peers.process import JavaServer, free_port

_CONFIG = """dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
tickTime=500
admin.enableServer=false
4lw.commands.whitelist=srvr
"""
_QUIET = logging.getLogger("peers.kazoo")
_QUIET.setLevel(logging.ERROR)


class ZooKeeper(JavaServer):
    """One standalone server on a free loopback port; its data stays in `directory` over a restart."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.connect = f"127.0.0.1:{self.port}"
        self._config = directory / "zoo.cfg"
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        super().__init__(home.KAFKA_ZOOKEEPER, main, [str(self._config)], directory=directory)

    def start(self, deadline_s: float = 90.0) -> None:
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        self._config.write_text(_CONFIG.format(data=data, port=self.port))
        super().start(deadline_s)

    @contextmanager
    def client(self) -> Iterator[KazooClient]:
        """A session of ours, to look at or change what the brokers keep there."""
        client = KazooClient(self.connect, logger=_QUIET)
        client.start()
        try:
            yield client
        finally:
            client.stop()
            client.close()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Alive and connected, but it says nothing."""
        assert self._process is not None, "not started"
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def is_ready(self) -> bool:
        return is_serving(self.port)


def is_serving(port: int) -> bool:
    """`ruok` would be answered before sessions are opened; a client that comes then may be left without an answer."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"srvr")
            return b"Mode: " in connection.makefile("rb").read()
    except OSError:
        return False

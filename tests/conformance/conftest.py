"""One ZooKeeper for all of this directory; every broker gets a chroot of its own in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from peers.zookeeper import ZooKeeper


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server

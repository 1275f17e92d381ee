"""What most tests of things on disk need."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.host.disk import RealDisk


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path)


@pytest.fixture
def disk() -> Iterator[RealDisk]:
    disk = RealDisk(num_io_threads=2)
    yield disk
    disk.close()

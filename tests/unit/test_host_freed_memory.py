"""Memory that was freed stays with the broker: a buffer for each request costs no page faults."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

_BUFFERS, _SIZE = 100, 2 * 1024 * 1024
_PAGES = _BUFFERS * _SIZE // os.sysconf("SC_PAGE_SIZE")

_COUNT = f"""
import resource
from tidelog.host import memory

is_kept = memory.keep_freed()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def take():
    buffers = [bytearray(b"x") * {_SIZE} for _ in range(4)]

for _ in range(3):
    take()
before = faults()
for _ in range({_BUFFERS // 4}):
    take()
print(is_kept, faults() - before)
"""


def _counted(**environment: str) -> tuple[bool, int]:
    told = subprocess.run(
        [sys.executable, "-c", _COUNT], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    is_kept, faults = told.stdout.split()
    return is_kept == "True", int(faults)


pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")


def test_buffers_that_are_freed_are_used_again() -> None:
    is_kept, faults = _counted()
    assert is_kept
    assert faults < _PAGES / 10


def test_what_the_environment_says_counts() -> None:
    is_kept, faults = _counted(MALLOC_TRIM_THRESHOLD_="0")
    assert not is_kept
    assert faults > _PAGES / 2

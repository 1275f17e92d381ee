"""What has a buffer and becomes garbage in a cycle ends well, whatever the collector clears first.

The collector clears a memoryview that it finds in garbage; if a compiled object still has its buffer, giving that back
would crash the process. So each case runs in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

_CASES = {
    "a request that is decoded in steps": """
from tidelog.wire.frames import RequestDecoding, encode_request
from tidelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
request = MetadataRequest(topics=[MetadataRequestTopic(name=f"t{number}") for number in range(50_000)])
data = b"".join(bytes(part) for part in encode_request(request, 9, 1, "client"))[4:]
def hold(view):
    decoding = RequestDecoding(view, 1 << 40)
    assert decoding.step() is None, "there is more to read"
    return decoding
""",
    "a cursor in a batch": """
from tidelog.records.batch import open_batch
from tidelog.records.build import build_batch
from tidelog.records.header import read_header
data = bytes(build_batch([(0, b"key", b"value")] * 100))
def hold(view):
    return open_batch(view, read_header(view), 0)
""",
}
_CYCLE = """
import gc
gc.disable()
class Holder: pass
for _ in range(20):
    view, holder = memoryview(bytearray(data)), Holder()
    holder.itself, holder.view, holder.held = holder, view, hold(view)
    del view, holder
    gc.collect()
"""


@pytest.mark.parametrize("case", _CASES)
def test_a_buffer_in_garbage_is_given_back(case: str) -> None:
    ended = subprocess.run([sys.executable, "-c", _CASES[case] + _CYCLE], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert not ended.stderr

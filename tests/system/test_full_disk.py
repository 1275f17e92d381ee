"""A disk that takes no more: the client hears KAFKA_STORAGE_ERROR, and a broker without a directory ends and says why.

The file system is not full here but files may not grow beyond a limit (RLIMIT_FSIZE), which a write meets just as well.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.kits.logkit import batch
from tests.kits.processkit import DEADLINE_S, broker_process
from tidelog.errors import ErrorCode
from tidelog.net.calling import Connection
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.wire.messages.topics import CreatableTopic, CreateTopicsRequest

LIMIT_KB = 4096


async def fill(port: int) -> tuple[int, int]:
    """Produce until it fails: how many batches were taken, and the error code then."""
    connection = await Connection.open("127.0.0.1", port, client_id="fill")
    topic = CreatableTopic(name="orders", num_partitions=1, replication_factor=1)
    made: Any = await connection.call(CreateTopicsRequest(topics=[topic], timeout_ms=20_000), 7)
    assert made.topics[0].error_code == 0
    data = PartitionProduceData(index=0, records=batch([bytes(100_000)]))
    request = ProduceRequest(
        acks=1, timeout_ms=10_000, topic_data=[TopicProduceData(name="orders", partition_data=[data])]
    )
    for count in range(1000):
        answer: Any = await connection.call(request, 9)
        code = answer.responses[0].partition_responses[0].error_code
        if code:
            connection.close()
            return count, code
    raise AssertionError("it took everything")


@pytest.mark.skipif(os.name != "posix", reason="needs resource limits")
def test_a_broker_whose_only_log_directory_is_full_ends_and_says_why(tmp_path: Path):
    limited = ["sh", "-c", f'ulimit -f {LIMIT_KB * 2}; exec "$@"', "sh"]  # in blocks of 512 bytes
    with broker_process(tmp_path, limited) as broker:
        count, code = uvloop.run(fill(broker.port))
        assert code == ErrorCode.KAFKA_STORAGE_ERROR
        assert 10 < count < 1000
        try:
            status = broker.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the broker goes on without a log directory:\n{broker.log}")
        assert status == 1
        assert broker.lines("ERROR", "is offline")
        (why,) = broker.lines("CRITICAL")
        assert "log directory" in why
        assert str(tmp_path / "data") in why
        assert not broker.lines("Traceback")
    with broker_process(tmp_path) as again:  # with room once more, what was acknowledged is there

        async def read() -> int:
            from tidelog.wire.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

            connection = await Connection.open("127.0.0.1", again.port, client_id="read")
            wanted = ListOffsetsTopic(name="orders", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    answer: Any = await connection.call(ListOffsetsRequest(replica_id=-1, topics=[wanted]), 5)
                    found = answer.topics[0].partitions[0]
                    if not found.error_code:
                        connection.close()
                        end: int = found.offset
                        return end
                    await asyncio.sleep(0.05)

        assert uvloop.run(read()) == count
        assert again.stop() == 0

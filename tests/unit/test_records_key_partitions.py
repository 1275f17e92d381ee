"""Keys of a column go where single keys go, compiled and not."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from tests.kits.records_lives import both_lives
from tidelog.client.partitioner import partition_of_key
from tidelog.records.arrow import from_arrow
from tidelog.records.buffers import BinaryBuffers


def _column(keys: pa.Array[Any]) -> BinaryBuffers:
    count = len(keys)
    times = pa.repeat(pa.scalar(0, pa.int64()), count)
    return from_arrow(pa.RecordBatch.from_arrays([times, keys, keys], ["timestamp", "key", "value"])).keys


def _numbers(life: Any, keys: pa.Array[Any], partitions: int, keyless: int = -1) -> list[int]:
    found = life.key_partitions.key_partitions(_column(keys), len(keys), partitions, keyless)
    return memoryview(found).cast("i").tolist()


@both_lives
@pytest.mark.parametrize("partitions", [1, 2, 7, 1000])
def test_as_kafkas_partitioner(life: Any, partitions: int) -> None:
    chance = random.Random(7)
    keys = [None if n % 7 == 3 else chance.randbytes(n % 41) for n in range(400)]
    expected = [5 if key is None else partition_of_key(key, partitions) for key in keys]
    for kind in (pa.binary(), pa.large_binary()):
        column = pa.array(keys, kind)
        assert _numbers(life, column, partitions, 5) == expected
        assert _numbers(life, column.slice(11, 99), partitions, 5) == expected[11:110]


@both_lives
def test_strings_are_their_bytes(life: Any) -> None:
    names = ["", "a", "straße", "日本語"]
    expected = [partition_of_key(name.encode(), 12) for name in names]
    assert _numbers(life, pa.array(names, pa.string()), 12) == expected


@both_lives
def test_columns_that_lie_are_refused(life: Any) -> None:
    lying = BinaryBuffers(b"\0\0\0\0\xff\0\0\0", b"abc", None, 0)
    with pytest.raises(ValueError, match="row 0 of the key column"):
        life.key_partitions.key_partitions(lying, 1, 3)
    with pytest.raises(ValueError, match="bytes of offsets"):
        life.key_partitions.key_partitions(lying, 2, 3)
    with pytest.raises(ValueError, match="at least one partition"):
        life.key_partitions.key_partitions(lying, 0, 0)

"""Answers are counted however the bytes are cut, and one that is not the next is found."""

from __future__ import annotations

import struct

import pytest

from bench.hot_answers import Answers
from bench.hot_frames import WrongAnswerError

IDS = 3


def answer(correlation_id: int, size: int = 20) -> bytes:
    return struct.pack(">ii", size - 4, correlation_id) + bytes(size - 8)


def counted(stream: bytes, pieces: int, *, room: int = 64, size: int = 20) -> list[int]:
    """The answers after each piece of so many bytes."""
    answers = Answers(memoryview(bytearray(room)), size, IDS)
    found = []
    while stream:
        piece = stream[: min(pieces, len(answers.room))]
        answers.room[: len(piece)] = piece
        found.append(answers.received(len(piece)))
        stream = stream[len(piece) :]
    return found


@pytest.mark.parametrize("pieces", range(1, 65))
def test_however_the_bytes_are_cut(pieces: int) -> None:
    stream = b"".join(answer(number % IDS) for number in range(10))
    assert sum(counted(stream, pieces)) == 10


@pytest.mark.parametrize("pieces", [1, 7, 16])
def test_answers_may_be_larger_than_the_buffer(pieces: int) -> None:
    stream = b"".join(answer(number % IDS, 100) for number in range(5))
    assert sum(counted(stream, pieces, room=16, size=100)) == 5


def test_an_answer_counts_when_its_last_byte_is_there() -> None:
    assert counted(answer(0) + answer(1), 20) == [1, 1]
    assert counted(answer(0) + answer(1), 19) == [0, 1, 1]
    assert counted(answer(0), 10) == [0, 1]


def test_another_size_is_found() -> None:
    with pytest.raises(WrongAnswerError, match="an answer of 16 bytes"):
        counted(answer(0) + answer(1, 16), 64)


def test_another_correlation_id_is_found() -> None:
    with pytest.raises(WrongAnswerError, match="correlation id 2; awaited were 20 and 1"):
        counted(answer(0) + answer(2), 64)

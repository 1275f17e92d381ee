"""Sequences of an idempotent producer: what keeps its number, what begins an epoch, and Kafka's partitioner."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tidelog.client.partitioner import StickyPartition, murmur2, partition_of_key
from tidelog.client.sequences import MAX_EPOCH, OutBatch, PartitionQueue
from tidelog.errors import ErrorCode
from tidelog.records.build import build_batch
from tidelog.records.header import check_crc, read_header
from tidelog.types import NO_PRODUCER, TopicPartition

P0 = TopicPartition("orders", 0)


def batch(count: int = 1) -> OutBatch:
    return OutBatch(build_batch([(0, None, b"v")] * count))


def queue_of(*counts: int, epoch: int = 0) -> tuple[PartitionQueue, list[OutBatch]]:
    """Batches of so many records behind one that is acknowledged, so that they may go together, from sequence 0 on."""
    queue = PartitionQueue(P0, idempotent=True)
    assert queue.needs_producer_id
    queue.identify(7, epoch)
    queue.add(batch())
    queue.acknowledged(queue.take())
    queue._next_sequence = 0
    batches = [batch(count) for count in counts]
    for one in batches:
        queue.add(one)
    return queue, batches


def take_all(queue: PartitionQueue) -> list[tuple[int, int]]:
    """(epoch, sequence) of each batch that may leave."""
    taken = []
    while queue.sendable:
        one = queue.take()
        header = read_header(one.data)
        check_crc(header, one.data)
        assert (header.producer_epoch, header.base_sequence) == (one.epoch, one.sequence)
        taken.append((one.epoch, one.sequence))
    return taken


def test_at_most_five_are_on_their_way_in_order() -> None:
    queue, batches = queue_of(3, 1, 2, 1, 1, 1, 1)
    assert take_all(queue) == [(0, 0), (0, 3), (0, 4), (0, 6), (0, 7)]
    queue.acknowledged(batches[0])
    assert take_all(queue) == [(0, 8)]


def test_edge_44_the_first_batch_of_a_producer_id_goes_alone() -> None:
    """Kafka would take the second of an unknown producer although it refused the first."""
    queue = PartitionQueue(P0, idempotent=True)
    queue.identify(7, 0)
    first, *_ = batches = [batch() for _ in range(3)]
    for waiting in batches:
        queue.add(waiting)
    assert take_all(queue) == [(0, 0)]
    queue.came_back(first, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert take_all(queue) == [(0, 0)]
    queue.acknowledged(first)
    assert take_all(queue) == [(0, 1), (0, 2)]


def test_what_came_back_keeps_its_sequence_and_is_not_overtaken() -> None:
    queue, (a, b, c) = queue_of(1, 1, 1)
    take_all(queue)
    queue.came_back(a, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert not queue.sendable
    queue.came_back(b, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    queue.came_back(c, ErrorCode.NETWORK_EXCEPTION)
    assert take_all(queue) == [(0, 0), (0, 1), (0, 2)]
    assert queue.in_flight == [a, b, c]


def test_behind_one_that_is_given_up_a_new_epoch_begins() -> None:
    queue, (a, b, c) = queue_of(1, 2, 1)
    take_all(queue)
    queue.acknowledged(a)
    queue.given_up(b)
    assert not queue.sendable
    queue.came_back(c, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    late = batch()
    queue.add(late)
    assert take_all(queue) == [(1, 0)]
    queue.acknowledged(c)
    assert take_all(queue) == [(1, 1)]


def test_behind_one_that_is_given_up_what_was_sent_keeps_its_sequence() -> None:
    """All may be written: in a new epoch the broker would not know b and c again."""
    queue, (a, b, c) = queue_of(1, 1, 1)
    take_all(queue)
    for sent in (a, b, c):
        queue.came_back(sent, ErrorCode.NETWORK_EXCEPTION)
    queue.given_up(a)
    late = batch()
    queue.add(late)
    assert take_all(queue) == [(0, 1), (0, 2)], "the one that was never sent waits for their answers"
    queue.acknowledged(b)
    assert take_all(queue) == [(0, 3)], "a was written: there is no gap"


def test_what_is_not_written_behind_a_given_up_batch_goes_on_in_a_new_epoch() -> None:
    queue, (a, b, c) = queue_of(1, 1, 1)
    take_all(queue)
    for sent in (a, b, c):
        queue.came_back(sent, ErrorCode.NETWORK_EXCEPTION)
    queue.given_up(a)
    late = batch()
    queue.add(late)
    assert take_all(queue) == [(0, 1), (0, 2)]
    queue.came_back(b, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert not queue.sendable
    queue.came_back(c, ErrorCode.NETWORK_EXCEPTION)
    assert take_all(queue) == [(1, 0)]
    queue.acknowledged(b)
    assert take_all(queue) == [(1, 1), (1, 2)]


def test_a_gap_is_closed_only_by_a_batch_behind_it() -> None:
    queue, (a, b, c) = queue_of(1, 1, 1)
    take_all(queue)
    for sent in (a, b, c):
        queue.came_back(sent, ErrorCode.NETWORK_EXCEPTION)
    queue.given_up(a)
    queue.given_up(c)
    queue.add(batch())
    assert take_all(queue) == [(0, 1)]
    queue.acknowledged(b)
    assert take_all(queue) == [(1, 0)], "whether c is written is not known"


def test_when_all_that_was_sent_is_given_up_a_new_epoch_begins() -> None:
    queue, (a, b) = queue_of(1, 1)
    take_all(queue)
    for sent in (a, b):
        queue.came_back(sent, ErrorCode.NETWORK_EXCEPTION)
        queue.given_up(sent)
    queue.add(batch())
    assert take_all(queue) == [(1, 0)]


def test_what_stood_before_a_given_up_batch_keeps_its_epoch() -> None:
    queue, (a, b, c) = queue_of(1, 1, 1)
    take_all(queue)
    queue.came_back(a, ErrorCode.NETWORK_EXCEPTION)
    queue.given_up(b)
    queue.came_back(c, ErrorCode.NETWORK_EXCEPTION)
    assert take_all(queue) == [(0, 0), (0, 2)]
    queue.acknowledged(a)
    queue.came_back(c, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert take_all(queue) == [(1, 0)]


def test_what_is_sent_behind_an_unanswered_batch_stays_within_what_the_broker_remembers() -> None:
    """The first goes to a leader that hangs, the others to its successor: all but the first are answered."""
    queue, (a, *others, last) = queue_of(1, 1, 1, 1, 1, 1)
    take_all(queue)
    for sent in others:
        queue.acknowledged(sent)
    assert queue.in_flight == [a]
    assert not queue.sendable, "the broker would forget the first, and call it out of sequence when it comes again"
    queue.acknowledged(a)
    assert take_all(queue) == [(0, 5)]
    assert queue.in_flight == [last]


def test_a_broker_that_contradicts_itself_leaves_older_batches_in_doubt() -> None:
    """It has forgotten all but the last batch: it knows c again, and calls a and b, which are written, out of order."""
    queue, (a, b, c) = queue_of(1, 1, 1)
    take_all(queue)
    for sent in (a, b, c):
        queue.came_back(sent, ErrorCode.NETWORK_EXCEPTION)
    take_all(queue)
    for sent in (a, b):
        queue.came_back(sent, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert queue.acknowledged(c) == [a, b]


def test_one_that_was_never_sent_leaves_no_gap() -> None:
    queue, (a, b) = queue_of(1, 1)
    queue.given_up(a)
    assert take_all(queue) == [(0, 0)]
    assert queue.in_flight == [b]


def test_a_broker_that_forgot_the_producer_gets_a_new_epoch() -> None:
    queue, (a, b) = queue_of(1, 1)
    take_all(queue)
    queue.came_back(a, ErrorCode.UNKNOWN_PRODUCER_ID)
    queue.came_back(b, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert take_all(queue) == [(1, 0)]
    queue.acknowledged(a)
    assert take_all(queue) == [(1, 1)]


def test_pieces_share_out_the_sequences_of_the_batch_that_was_refused() -> None:
    queue, (a, b, c) = queue_of(1, 5, 2)
    take_all(queue)
    queue.acknowledged(a)
    first, second = pieces = [batch(2), batch(3)]
    queue.split(b, pieces)
    assert not queue.sendable, "what was sent behind it is not back yet"
    queue.came_back(c, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert queue.begins_unsent
    late = batch()
    queue.add(late)
    assert take_all(queue) == [(0, 1), (0, 3), (0, 6), (0, 8)]
    assert queue.in_flight == [first, second, c, late]
    for sent in (second, first):
        queue.came_back(sent, ErrorCode.NETWORK_EXCEPTION)
    assert [*queue.waiting] == [first, second], "pieces keep their order, whichever comes back first"


def test_a_piece_is_split_again() -> None:
    queue, (a, b) = queue_of(4, 1)
    take_all(queue)
    half, other = batch(2), batch(2)
    queue.split(a, [half, other])
    queue.came_back(b, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    queue.take()
    quarters = [batch(), batch()]
    queue.split(half, quarters)
    assert [*queue.waiting] == [*quarters, other, b]
    assert take_all(queue) == [(0, 0), (0, 1), (0, 2), (0, 4)]


def test_what_was_never_sent_is_split_before_it_has_sequences() -> None:
    queue, (a, b) = queue_of(2, 1)
    queue.split(a, [batch(), batch()])
    assert take_all(queue) == [(0, 0), (0, 1), (0, 2)]
    assert queue.in_flight[-1] is b


def test_sequences_of_pieces_wrap() -> None:
    queue, (a,) = queue_of(4)
    queue._next_sequence = 2**31 - 1
    take_all(queue)
    queue.split(a, [batch(3), batch(1)])
    assert take_all(queue) == [(0, 2**31 - 1), (0, 2)]


def test_behind_a_piece_that_is_given_up_a_new_epoch_begins() -> None:
    queue, (a, b) = queue_of(2, 1)
    take_all(queue)
    pieces = [batch(), batch()]
    queue.split(a, pieces)
    queue.came_back(b, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert take_all(queue) == [(0, 0), (0, 1), (0, 2)]
    queue.given_up(pieces[0])
    for sent in (pieces[1], b):
        queue.came_back(sent, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert take_all(queue) == [(1, 0)]
    queue.acknowledged(pieces[1])
    assert take_all(queue) == [(1, 1)]


def test_a_split_before_a_gap_moves_the_gap() -> None:
    queue, (a, b, c) = queue_of(3, 1, 1)
    take_all(queue)
    queue.given_up(b)
    queue.given_up(c)
    queue.split(a, [batch(), batch(), batch()])
    queue.add(batch())
    assert take_all(queue) == [(0, 0), (0, 1), (0, 2)]
    for piece in list(queue.in_flight):
        queue.acknowledged(piece)
    assert take_all(queue) == [(1, 0)], "all pieces stand before the batches that were given up"


def test_a_doubtful_piece_behind_a_given_up_batch_keeps_its_sequence() -> None:
    """Its whole may be written. Out of sequence it stays in doubt, and does not begin a new epoch."""
    queue, (a, b) = queue_of(1, 2)
    take_all(queue)
    for _ in range(2):
        for sent in (a, b):
            queue.came_back(sent, ErrorCode.NETWORK_EXCEPTION)
        take_all(queue)
    queue.came_back(a, ErrorCode.NETWORK_EXCEPTION)
    queue.split(b, [piece := batch(), batch()])
    queue.given_up(a)
    assert take_all(queue) == [(0, 1), (0, 2)]
    assert queue.may_be_written(piece, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


def test_a_piece_of_a_batch_that_was_sent_before_may_be_written() -> None:
    """If an unanswered attempt wrote the whole, the broker knows other sequences than the pieces have."""
    queue, (a, b) = queue_of(2, 1)
    take_all(queue)
    queue.came_back(b, ErrorCode.NETWORK_EXCEPTION)
    queue.came_back(a, ErrorCode.NETWORK_EXCEPTION)
    take_all(queue)
    pieces = [batch(), batch()]
    queue.split(a, pieces)
    queue.came_back(b, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    take_all(queue)
    assert queue.may_be_written(pieces[0], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert not queue.may_be_written(pieces[0], ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert not queue.may_be_written(pieces[1], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), "its turn had not come"
    assert not queue.may_be_written(b, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), "it is no piece"


def test_used_up_epochs_ask_for_another_producer_id() -> None:
    queue, (a, b) = queue_of(1, 1, epoch=MAX_EPOCH)
    take_all(queue)
    queue.given_up(a)
    queue.came_back(b, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert queue.needs_producer_id
    queue.identify(8, 0)
    assert take_all(queue) == [(0, 0)]
    assert b.producer_id == 8


def test_sequences_wrap() -> None:
    queue, _ = queue_of(1, 2, 1)
    queue._next_sequence = 2**31 - 2
    assert take_all(queue) == [(0, 2**31 - 2), (0, 2**31 - 1), (0, 1)]


def test_without_idempotence_batches_are_left_as_they_are() -> None:
    queue = PartitionQueue(P0, idempotent=False)
    one = batch()
    before = bytes(one.data)
    queue.add(one)
    assert queue.take().producer_id == NO_PRODUCER
    assert bytes(one.data) == before


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF
    assert partition_of_key(memoryview(key), 7) == (signed & 0x7FFFFFFF) % 7


def test_records_without_keys_stick_until_a_batch_is_full() -> None:
    sticky = StickyPartition(random.Random(1))
    seen: Counter[int] = Counter()
    for _ in range(300):
        first = sticky.current([0, 1, 2])
        assert sticky.current([0, 1, 2]) == first
        seen[first] += 1
        sticky.move_on([0, 1, 2])
        assert sticky.current([0, 1, 2]) != first
    assert min(seen.values()) > 60
    assert sticky.current([5]) == 5

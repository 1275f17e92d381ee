"""A batch of an idempotent producer that comes before an older one: what the producer is told (edge cases 18, 20, 44).

librdkafka answers OUT_OF_ORDER_SEQUENCE_NUMBER with a new producer epoch, or gives up, and takes the success of a batch
for the success of all older ones. So a batch that may only come too early is refused for a passing reason.
"""

from __future__ import annotations

import pytest

from tests.kits.brokerkit import PRODUCE, PRODUCE_BY_NAME, Kit, code_of, produce_request, run
from tests.kits.logkit import FixedClock, batch, idempotent
from tidelog.broker.partition import RequestError
from tidelog.broker.refusals import LIFETIME_MS, Refusals, Sent
from tidelog.errors import ErrorCode, OutOfOrderSequenceError
from tidelog.lab.broker import eventually
from tidelog.log.producer_state import ProducerState
from tidelog.log.producers import SequenceGapError

NONE, COME_AGAIN = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
REFUSED = ErrorCode.NOT_ENOUGH_REPLICAS
CONNECTION, ANOTHER = FixedClock(), FixedClock()
"""Any objects: they are only compared."""


def sent(sequence: int, *, epoch: int = 0, pid: int = 7) -> Sent:
    return Sent("t", 0, pid, epoch, sequence)


def unknown() -> SequenceGapError:
    return SequenceGapError("a gap", None)


def known(last_offset: int) -> SequenceGapError:
    state = ProducerState(7, 0)
    state.batches.append((0, 0, last_offset, last_offset, 0))
    return SequenceGapError("a gap", state)


def told(refusals: Refusals, which: Sent, gap: SequenceGapError, epoch_start_offset: int = 100) -> ErrorCode:
    """What a producer hears, and what is remembered of it."""
    try:
        refusals.check_gap(which, gap, epoch_start_offset)
    except RequestError as refusal:
        refusals.refused(which, refusal.code, CONNECTION)
        return refusal.code
    except OutOfOrderSequenceError as refusal:
        return refusal.code
    return NONE


# The rules


def test_edge_44_an_unknown_producer_shows_that_it_has_nothing_older() -> None:
    refusals = Refusals(FixedClock())
    assert told(refusals, sent(10), unknown()) is COME_AGAIN
    assert told(refusals, sent(15), unknown()) is COME_AGAIN, "it is behind a refused one"
    assert told(refusals, sent(10), unknown()) is NONE


def test_edge_44_an_older_batch_of_an_unknown_producer_comes_first() -> None:
    refusals = Refusals(FixedClock())
    assert told(refusals, sent(10), unknown()) is COME_AGAIN
    assert told(refusals, sent(5), unknown()) is COME_AGAIN, "and this one may have an older one too"
    assert told(refusals, sent(10), unknown()) is COME_AGAIN
    assert told(refusals, sent(5), unknown()) is NONE


@pytest.mark.parametrize("gap", [unknown(), known(5), known(150)])
def test_what_is_behind_a_refused_batch_hears_the_same_for_two_minutes(gap: SequenceGapError) -> None:
    clock = FixedClock()
    refusals = Refusals(clock)
    refusals.refused(sent(10), REFUSED, CONNECTION)
    clock.now_ms += LIFETIME_MS - 1
    assert told(refusals, sent(15), gap) is REFUSED
    clock.now_ms += 1
    assert told(refusals, sent(15), gap) is (COME_AGAIN if gap.last_offset < 100 else OUT_OF_ORDER)


def test_what_a_former_leader_may_still_get_is_waited_for_once() -> None:
    refusals = Refusals(FixedClock())
    assert told(refusals, sent(15), known(99)) is COME_AGAIN
    assert told(refusals, sent(20), known(99)) is COME_AGAIN
    assert told(refusals, sent(15), known(99)) is OUT_OF_ORDER, "the producer has nothing older: batches are missing"


@pytest.mark.parametrize("gap", [known(5), known(150)])
def test_a_producer_that_starts_over_with_a_later_batch_has_given_the_refused_one_up(gap: SequenceGapError) -> None:
    refusals = Refusals(FixedClock())
    refusals.refused(sent(10), REFUSED, CONNECTION)
    for sequence in (15, 20, 15, 20):
        assert told(refusals, sent(sequence), gap) is REFUSED
    assert told(refusals, sent(15), gap) is OUT_OF_ORDER


def test_what_comes_behind_a_refused_batch_however_often_does_not_show_that_it_is_given_up() -> None:
    refusals = Refusals(FixedClock())
    for _ in range(5):
        refusals.refused(sent(10), REFUSED, CONNECTION)
        for sequence in (15, 20):
            assert told(refusals, sent(sequence), known(150)) is REFUSED


def test_edge_44_copies_on_two_connections_do_not_show_that_the_first_batch_is_given_up() -> None:
    """After a freeze the broker finds the same batches on each connection that the client has made meanwhile."""
    refusals = Refusals(FixedClock())
    for sequence in (0, 5, 10):
        for connection in (CONNECTION, ANOTHER):
            refusals.refused(sent(sequence), REFUSED, connection)
    for sequence in (5, 10):
        assert told(refusals, sent(sequence), unknown()) is REFUSED


def test_a_gap_behind_a_batch_of_this_leader_epoch_is_a_gap() -> None:
    assert told(Refusals(FixedClock()), sent(15), known(100)) is OUT_OF_ORDER


def test_another_epoch_of_the_producer_is_another_story() -> None:
    refusals = Refusals(FixedClock())
    assert told(refusals, sent(10), unknown()) is COME_AGAIN
    assert told(refusals, sent(10, epoch=1), unknown()) is COME_AGAIN
    assert told(refusals, sent(10, epoch=1), unknown()) is NONE


def test_a_taken_batch_ends_all_that_was_refused_before_it_and_nothing_after_it() -> None:
    refusals = Refusals(FixedClock())
    refusals.refused(sent(10), REFUSED, CONNECTION)
    refusals.taken(sent(5))
    assert told(refusals, sent(15), known(150)) is REFUSED
    refusals.taken(sent(20))
    assert not refusals, "another leader took it meanwhile"


def test_edge_44_a_producer_whose_refusal_was_forgotten_for_others_is_refused_again() -> None:
    """To take the batch would skip the refused one before it. If it comes once more, its producer has nothing older."""
    refusals = Refusals(FixedClock())
    refusals.refused(sent(1), REFUSED, CONNECTION)
    for pid in range(20_000, 30_000):
        refusals.refused(sent(1, pid=pid), REFUSED, CONNECTION)
    assert told(refusals, sent(10), unknown()) is COME_AGAIN
    assert told(refusals, sent(10), unknown()) is NONE


# In a broker


@pytest.mark.parametrize("is_empty", [True, False])
def test_edge_44_the_first_batch_that_is_taken_does_not_skip_a_refused_one(is_empty: bool) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        partition = kit.partition()
        if not is_empty:
            assert await code_of(kit.produce(batch([b"of another"]))) == NONE
        leader, partition.leader = partition.leader, None
        assert await code_of(kit.produce(idempotent(0))) == COME_AGAIN
        partition.leader = leader
        for sequence in (1, 2, 1):
            assert await code_of(kit.produce(idempotent(sequence))) == COME_AGAIN
        for sequence in (0, 1, 2):
            assert await code_of(kit.produce(idempotent(sequence))) == NONE
        assert (await kit.values())[-3:] == [b"0", b"1", b"2"]

    run(story)


def test_edge_44_also_where_the_refused_one_named_a_topic_id_that_was_not_known_yet() -> None:
    async def story(kit: Kit) -> None:
        topic_id = await kit.create_topic()
        assert await code_of(kit.produce(batch([b"of another"]))) == NONE
        known_topics = kit.broker.metadata.name_of

        async def produce(sequence: int) -> ErrorCode:
            return await code_of(kit.produce(idempotent(sequence), "", version=PRODUCE, topic_id=topic_id))

        kit.broker.metadata.name_of = lambda topic_id: None  # type: ignore[method-assign]
        assert await produce(0) == ErrorCode.UNKNOWN_TOPIC_ID
        kit.broker.metadata.name_of = known_topics  # type: ignore[method-assign]
        assert await produce(1) == ErrorCode.UNKNOWN_TOPIC_ID
        assert [await produce(sequence) for sequence in (0, 1)] == [NONE, NONE]

    run(story)


def test_a_producer_goes_on_when_its_topic_was_made_anew() -> None:
    """librdkafka keeps its sequences, and OUT_OF_ORDER_SEQUENCE_NUMBER for its oldest batch is the end of it."""

    async def story(kit: Kit) -> None:
        await kit.create_topic()
        for sequence in range(3):
            assert await code_of(kit.produce(idempotent(sequence))) == NONE
        await kit.delete_topic()
        await kit.create_topic()
        assert await code_of(kit.produce(idempotent(3))) == COME_AGAIN
        assert await code_of(kit.produce(idempotent(4))) == COME_AGAIN
        assert await code_of(kit.produce(idempotent(3))) == NONE
        assert await code_of(kit.produce(idempotent(4))) == NONE

    run(story)


def test_edge_18_a_producer_goes_on_when_its_state_has_expired() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        assert await code_of(kit.produce(idempotent(0))) == NONE
        assert kit.partition().log.producers.remove_expired(0) == 0
        assert kit.partition().log.producers.remove_expired(2**62) == 1
        assert await code_of(kit.produce(idempotent(1))) == COME_AGAIN
        assert await code_of(kit.produce(idempotent(1))) == NONE
        assert await kit.values() == [b"0", b"1"]

    run(story)


def test_with_acks_0_a_batch_cannot_be_asked_for_again() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        connection = await kit.connect()
        connection.post(produce_request({("t", 0): idempotent(5)}, acks=0), PRODUCE_BY_NAME)
        await eventually(lambda: kit.partition().log.log_end_offset == 1)

    run(story)

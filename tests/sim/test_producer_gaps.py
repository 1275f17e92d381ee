"""A new leader and a producer that has batches under way to the former one: nothing is skipped, nothing written twice.

librdkafka waits for the answers of the former leader before it writes to the new one, but one of its threads counts a
request as answered before it has put its records back into the queue. So the next batch may leave before that one.
OUT_OF_ORDER_SEQUENCE_NUMBER then makes it begin a new producer epoch, and what it has not heard of, in any partition,
is written again under the new epoch.
"""

from __future__ import annotations

import asyncio

from tests.kits.brokerkit import code_of
from tests.kits.clusterkit import ClusterKit, run
from tests.kits.logkit import idempotent
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually

NONE, COME_AGAIN = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def _led_anew(cluster: ClusterKit) -> int:
    """The new leader, after the first one took 0 of producer 7 and died."""
    first = cluster.leader()
    assert await code_of(cluster.kits[first].produce(idempotent(0))) == NONE
    cluster.kits[first].kill()
    others = [number for number in cluster.kits if number != first]
    await eventually(lambda: cluster.leader() in others)
    new = cluster.leader()
    await eventually(lambda: cluster.kits[new].partition().leader is not None)
    return new


def test_edge_44_a_new_leader_does_not_take_what_comes_before_a_batch_that_the_former_one_had() -> None:
    """1 was under way to the former leader. An epoch bump of librdkafka would write others twice, so none is asked."""

    async def story(cluster: ClusterKit) -> None:
        kit = cluster.kits[await _led_anew(cluster)]
        for sequence in (2, 3):
            assert await code_of(kit.produce(idempotent(sequence))) == COME_AGAIN
        for sequence in (0, 1, 2, 3):
            assert await code_of(kit.produce(idempotent(sequence))) == NONE
        assert await code_of(kit.produce(idempotent(9))) == OUT_OF_ORDER, "all that is missing would come here"
        assert await kit.values() == [b"0", b"1", b"2", b"3"]

    run(story)


def test_edge_44_a_new_leader_does_not_start_an_unknown_producer_in_the_middle() -> None:
    async def story(cluster: ClusterKit) -> None:
        kit = cluster.kits[await _led_anew(cluster)]
        for sequence in (1, 2, 0, 1, 2):
            code = await code_of(kit.produce(idempotent(sequence, producer_id=8)))
            assert code == (COME_AGAIN if kit.partition().log.log_end_offset == 1 and sequence else NONE)
        assert await kit.values() == [b"0", b"0", b"1", b"2"]

    run(story)


def test_a_gap_that_a_new_leader_is_shown_twice_is_told() -> None:
    async def story(cluster: ClusterKit) -> None:
        kit = cluster.kits[await _led_anew(cluster)]
        codes = [await code_of(kit.produce(idempotent(2))) for _ in range(2)]
        assert codes == [COME_AGAIN, OUT_OF_ORDER]

    run(story)


def test_edge_44_the_batches_of_a_cut_log_are_sent_again_in_order() -> None:
    """A leader takes 1 and 2 that nobody copies, follows another, cuts them off, and leads again when 3 arrives."""

    async def story(cluster: ClusterKit) -> None:
        first = cluster.leader()
        kit = cluster.kits[first]
        assert await code_of(kit.produce(idempotent(0))) == NONE
        network, others = cluster.world.network, [number for number in cluster.kits if number != first]
        for number in others:
            network.cut(f"b{first}", f"b{number}")
        waiting = [asyncio.ensure_future(code_of(kit.produce(idempotent(sequence)))) for sequence in (1, 2)]
        await eventually(lambda: kit.partition().log.log_end_offset == 3)
        # Cut off from the store as well: else it registers anew before the next controller looks, and goes on leading.
        session = kit.broker.session.id
        cluster.store.suspend(session)
        cluster.store.expire(session)
        await eventually(lambda: cluster.leader() in others)
        cluster.store.resume(session)
        assert await asyncio.gather(*waiting) == [COME_AGAIN, COME_AGAIN]
        for number in others:
            network.heal(f"b{first}", f"b{number}")
        await eventually(lambda: first in cluster.isr())
        assert kit.partition().log.log_end_offset == 1
        for number in others:
            cluster.kits[number].kill()
        await eventually(lambda: cluster.leader() == first and kit.partition().leader is not None)
        codes = [await code_of(kit.produce(idempotent(sequence), acks=1)) for sequence in (3, 1, 2, 3)]
        assert codes == [COME_AGAIN, NONE, NONE, NONE]

    run(story)

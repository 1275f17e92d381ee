"""Which controller a broker believes: only one that the coordination store knows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.kits.brokerkit import UPDATE_METADATA, Kit, run
from tests.kits.metricskit import value
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.net.calling import ConnectionClosedError
from tidelog.wire.messages.controller import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)

OTHER = 7
FAR = 2**31 - 1


def _update(kit: Kit, epoch: int, controller_id: int = OTHER, **changes: Any) -> UpdateMetadataRequest:
    """It says that broker 1 is elsewhere."""
    endpoint = UpdateMetadataEndpoint(host="elsewhere", port=6666, listener="PLAINTEXT")
    return UpdateMetadataRequest(
        controller_id=controller_id,
        controller_epoch=epoch,
        broker_epoch=changes.get("broker_epoch", kit.broker.epoch),
        topic_states=changes.get("topic_states", []),
        live_brokers=[UpdateMetadataBroker(id=1, endpoints=[endpoint])],
    )


def _host(kit: Kit) -> str:
    return kit.broker.metadata.brokers[1].endpoints["PLAINTEXT"].host


def _reads(kit: Kit) -> float:
    return value(kit.broker.metrics, "tidelog_controller_epoch_reads_total")


def test_an_epoch_that_the_store_does_not_know_is_not_believed() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        host, epoch = _host(kit), kit.controller_epoch
        with pytest.raises(ConnectionClosedError):
            await kit.call(_update(kit, FAR), UPDATE_METADATA)
        with pytest.raises(ConnectionClosedError):
            await kit.lead_and_isr(leader=2, controller_epoch=FAR)
        assert (_host(kit), kit.controller_epoch) == (host, epoch)
        assert kit.partition().leader is not None
        await kit.create_topic("heard-of")  # from the real controller

    run(story)


def test_the_epoch_of_the_controller_under_another_id_is_not_believed() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        host = _host(kit)
        answer = await kit.call(_update(kit, kit.controller_epoch), UPDATE_METADATA)
        assert (answer.error_code, _host(kit)) == (ErrorCode.STALE_CONTROLLER_EPOCH, host)

    run(story)


@pytest.mark.parametrize("broker_epoch", [-1, 0])
def test_a_broker_epoch_of_no_registration_is_refused(broker_epoch: int) -> None:
    async def story(kit: Kit) -> None:
        host = _host(kit)
        update = _update(kit, kit.controller_epoch, kit.broker_id, broker_epoch=broker_epoch)
        assert (await kit.call(update, UPDATE_METADATA)).error_code == ErrorCode.STALE_BROKER_EPOCH
        assert _host(kit) == host

    run(story)


def test_a_new_controller_is_looked_up_once() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        assert _reads(kit) == 1, "the controller of its start"
        epoch = kit.controller_epoch + 1
        await kit.elect(OTHER, epoch)
        for _ in range(3):
            assert (await kit.call(_update(kit, epoch), UPDATE_METADATA)).error_code == 0
        assert (_host(kit), _reads(kit)) == ("elsewhere", 2)
        stale = await kit.call(_update(kit, epoch - 1, kit.broker_id), UPDATE_METADATA)
        assert (stale.error_code, _reads(kit)) == (ErrorCode.STALE_CONTROLLER_EPOCH, 2)

    run(story)


def test_a_controller_that_was_replaced_before_it_was_heard_is_refused() -> None:
    async def story(kit: Kit) -> None:
        epoch = kit.controller_epoch
        await kit.elect(OTHER, epoch + 2)
        answer = await kit.call(_update(kit, epoch + 1), UPDATE_METADATA)
        assert answer.error_code == ErrorCode.STALE_CONTROLLER_EPOCH

    run(story)


def test_an_election_that_the_store_tells_late_is_waited_for() -> None:
    async def story(kit: Kit) -> None:
        epoch = kit.controller_epoch + 1
        other = await kit.connect()
        early = other.send(_update(kit, epoch), UPDATE_METADATA, timeout_ms=5_000)
        done, _ = await asyncio.wait([early], timeout=0.5)
        assert not done, "it is neither believed nor refused yet"
        await kit.elect(OTHER, epoch)
        assert (await early).error_code == 0
        assert _reads(kit) == 2
        other.close()

    run(story)


def test_without_the_store_no_new_controller_is_believed() -> None:
    async def story(kit: Kit) -> None:
        epoch = kit.controller_epoch + 1
        await kit.elect(OTHER, epoch)
        kit.store.suspend(kit.broker.session.id)
        with pytest.raises(ConnectionClosedError):
            await kit.call(_update(kit, epoch), UPDATE_METADATA)
        kit.store.resume(kit.broker.session.id)
        await eventually(lambda: kit.broker.session.is_current())
        assert (await kit.call(_update(kit, epoch), UPDATE_METADATA)).error_code == 0

    run(story)


def test_large_requests_of_strangers_take_no_place_from_the_controller() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic()
        place = kit.broker._dispatcher._of_controller
        place._max_elements = 1  # one at a time
        topics = [UpdateMetadataTopicState(topic_name=f"t-{number}") for number in range(2_000)]
        strangers = [await kit.connect() for _ in range(3)]
        unknown = [
            stranger.send(_update(kit, FAR, topic_states=topics), UPDATE_METADATA, timeout_ms=5_000)
            for stranger in strangers
        ]
        own = _update(kit, kit.controller_epoch, kit.broker_id, topic_states=topics)
        answer = await asyncio.wait_for(kit.call(own, UPDATE_METADATA), 0.5)
        assert (answer.error_code, place._held) == (0, 0)
        assert not any(sent.done() for sent in unknown), "they wait for the store to tell of their epoch"
        for sent in unknown:
            with pytest.raises(ConnectionClosedError):
                await sent
        stale = _update(kit, kit.controller_epoch - 1, kit.broker_id, topic_states=topics)
        place._held = 1_000_000
        assert (await kit.call(stale, UPDATE_METADATA)).error_code == ErrorCode.STALE_CONTROLLER_EPOCH
        place.give(1_000_000)

    run(story)


def test_many_strangers_share_one_question_to_the_store() -> None:
    async def story(kit: Kit) -> None:
        before = _reads(kit)
        strangers = [await kit.connect() for _ in range(50)]
        for number, stranger in enumerate(strangers):
            stranger.send(_update(kit, FAR - number), UPDATE_METADATA, timeout_ms=5_000).add_done_callback(_ignore)
        await asyncio.sleep(0.5)
        epoch = kit.controller_epoch + 1
        await kit.elect(OTHER, epoch)
        assert (await kit.call(_update(kit, epoch), UPDATE_METADATA)).error_code == 0, "nobody stands in its way"
        assert _reads(kit) - before == 1, "for the election"
        for stranger in strangers:
            stranger.close()

    run(story)


def _ignore(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled():
        answer.exception()

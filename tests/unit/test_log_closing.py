"""A log that is closed while something else happens to it."""

from __future__ import annotations

import asyncio

from tests.logkit import idempotent, open_log, values, with_config
from tidelog.lab.world import SimHost, World
from tidelog.log.trimming import truncate_to


def test_a_log_that_is_closed_during_a_cut_forgets_the_producers_of_what_was_cut() -> None:
    """Seed 421: a clean stop during a cut left a snapshot with batches that were cut off. When their producer sent them
    again they were called duplicates, and acknowledged without being written."""

    async def story(host: SimHost) -> None:
        host.disk.work.delay_ms = (5.0, 50.0)
        log = await open_log(host.disk, "data", with_config(segment_bytes=10**6))
        for sequence in range(5):
            log.append_as_leader(idempotent(sequence), 0)
        cutting = asyncio.ensure_future(truncate_to(log, 2))
        while log.log_end_offset > 2:
            await asyncio.sleep(0.001)
        assert log.being_cut
        await log.close()
        await cutting
        again = await open_log(host.disk, "data", clean=True, recovery_point=2)
        for sequence in range(5):
            assert again.append_as_leader(idempotent(sequence), 1).duplicate is (sequence < 2)
        assert await values(again) == [b"0", b"1", b"2", b"3", b"4"]

    with World(1) as world:
        host = world.host("b1")
        world.run(story(host))

"""A log against a list: whatever is done to both, they hold the same records."""

import asyncio
import tempfile

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kits.logkit import FixedClock, batch, open_log, read_all, with_config
from tidelog.host.disk import RealDisk
from tidelog.log.log import Log
from tidelog.log.trimming import advance_log_start, delete_expired, restart_at, truncate_to

CONFIG = with_config(segment_bytes=400, index_interval_bytes=100, retention_ms=-1)

steps = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 5)),
    st.tuples(st.just("append"), st.integers(1, 5)),
    st.tuples(st.just("truncate"), st.floats(0, 1)),
    st.tuples(st.just("delete"), st.floats(0, 1)),
    st.tuples(st.just("roll"), st.none()),
    st.tuples(st.just("flush"), st.none()),
    st.tuples(st.just("restart at"), st.integers(0, 50)),
    st.tuples(st.just("close"), st.none()),
    st.tuples(st.just("kill"), st.none()),
)


class Model:
    """The list: (offset, value) of every record that must be readable, and the batches by their first offsets."""

    def __init__(self) -> None:
        self.start = self.end = 0
        self.batches: list[tuple[int, list[bytes]]] = []

    def truncate(self, offset: int) -> None:
        if offset >= self.end:
            return
        self.batches = [(base, values) for base, values in self.batches if base + len(values) <= offset]
        kept_end = self.batches[-1][0] + len(self.batches[-1][1]) if self.batches else None
        straddles = kept_end is not None and kept_end < offset
        self.end = kept_end if straddles and kept_end is not None else offset
        self.start = min(self.start, self.end)

    def records(self) -> list[tuple[int, bytes]]:
        everything = [(base + i, value) for base, values in self.batches for i, value in enumerate(values)]
        return [(offset, value) for offset, value in everything if offset >= self.start]


async def apply(log: Log, model: Model, step: tuple[str, object], disk: RealDisk, directory: str) -> Log:
    kind, argument = step
    if kind == "append":
        values = [b"%d-%d" % (model.end, i) for i in range(argument)]  # type: ignore[call-overload]
        assert log.append_as_leader(batch(values), 0).base_offset == model.end
        model.batches.append((model.end, values))
        model.end += len(values)
    elif kind == "truncate":
        offset = model.start + int((model.end - model.start) * argument)  # type: ignore[operator]
        await truncate_to(log, offset)
        model.truncate(offset)
        model.end = log.log_end_offset if not model.batches else model.end
        model.start = min(model.start, model.end)
    elif kind == "delete":
        offset = model.start + int((model.end - model.start) * argument)  # type: ignore[operator]
        log.high_watermark = log.log_end_offset
        advance_log_start(log, offset)
        await delete_expired(log)
        model.start = max(model.start, offset)
    elif kind == "roll":
        log.roll()
    elif kind == "flush":
        await log.flush()
    elif kind == "restart at":
        await restart_at(log, model.end + argument)  # type: ignore[operator]
        model.batches = []
        model.start = model.end = model.end + argument  # type: ignore[operator]
    else:
        if kind == "close":
            await log.close()
        await log.work.run(lambda: None)
        log = await open_log(
            disk,
            directory,
            CONFIG,
            clock=FixedClock(),
            clean=kind == "close",
            log_start_offset=model.start,
            recovery_point=log.recovery_point,
        )
    return log


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, max_size=25), st.integers(1, 2000))
def test_a_log_holds_what_a_list_holds(plan: list[tuple[str, object]], max_bytes: int):
    async def scenario(directory: str) -> None:
        disk = RealDisk(num_io_threads=1, max_open=2)
        model = Model()
        log = await open_log(disk, directory, CONFIG)
        for step in plan:
            log = await apply(log, model, step, disk, directory)
            assert (log.log_start_offset, log.log_end_offset) == (model.start, model.end)
        found = await read_all(log, max_bytes=max_bytes)
        assert [(record.offset, record.value) for record in found] == model.records()
        for offset, value in model.records():
            assert (await read_all(log, offset))[0].value == value
        disk.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(scenario(directory))

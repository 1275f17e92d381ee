"""The demo without brokers and Spark: its orders are the seed's, and its books fail when anything is off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples.demo.chart import processed_rates, written_rates
from examples.demo.ledger import Found, Ledger, prove
from examples.demo.load import IN_FLIGHT_CHUNKS, Sample
from examples.demo.orders import BASE_MS, MINUTE_MS, ORDERS_PER_EVENT_S, PARTITIONS, PER_CHUNK, Plan
from examples.demo.results import minute_of, table_files

PLAN = Plan(60_000, 8)
DELAY_MS = 10 * MINUTE_MS
"""The watermark's, in the project's template."""


def everything(plan: Plan) -> tuple[Ledger, list[bytes]]:
    ledger, values = Ledger(), []
    packets = [packet for number in range(plan.chunks) for packet in plan.chunk(number)]
    for packet in [*packets, *plan.late_packets(), plan.closing_packet()]:
        ledger.add(packet.ledger)
        values += [value for _, value in packet.records]
    return ledger, values


def test_the_seed_decides_every_byte() -> None:
    assert PLAN.chunk(3) == PLAN.chunk(3)
    assert PLAN.chunk(3) != Plan(60_000, 9).chunk(3)
    assert PLAN.chunk(3) != PLAN.chunk(4)


def test_the_books_are_what_the_records_say() -> None:
    """Counted again from the bytes, in another way."""
    ledger, values = everything(PLAN)
    minutes: dict[int, tuple[int, int]] = {}
    malformed, late, closing = set(), 0, 0
    for value in values:
        try:
            order = json.loads(value)
        except ValueError:
            malformed.add(value)
            continue
        if order.get("late"):
            late += 1
        elif order["ts"] > BASE_MS + 86_400_000:
            closing += 1
        else:
            minute = order["ts"] // MINUTE_MS * MINUTE_MS
            count, cents = minutes.get(minute, (0, 0))
            minutes[minute] = (count + 1, cents + order["amount_cents"])
    assert ledger == Ledger(minutes, malformed, late, closing)
    assert ledger.records == len(values) == PLAN.orders + PLAN.too_late + 1
    assert malformed, "a few are no orders"


def test_every_partition_gets_orders_and_the_last_chunk_may_be_short() -> None:
    assert [packet.partition for packet in PLAN.chunk(0)] == list(range(PARTITIONS))
    short = Plan(PER_CHUNK + 7, 8)
    assert (short.chunks, sum(len(packet.records) for packet in short.chunk(1))) == (2, 7)


def test_only_the_marked_ones_are_too_late() -> None:
    """Whatever order the partitions are read in, as far apart as the load lets them come."""
    latest_ms = 0
    apart_ms = IN_FLIGHT_CHUNKS * PER_CHUNK * 1000 // ORDERS_PER_EVENT_S
    disorder = 0
    for number in range(PLAN.chunks):
        for packet in PLAN.chunk(number):
            for _, value in packet.records:
                if value in packet.ledger.malformed:
                    continue
                ts = json.loads(value)["ts"]
                disorder += ts < latest_ms
                latest_ms = max(latest_ms, ts)
                assert ts > latest_ms + apart_ms - DELAY_MS
    assert disorder > PLAN.orders // 2, "they are out of order"
    ends = [json.loads(packet.records[0][1])["ts"] // MINUTE_MS for packet in PLAN.late_packets()]
    assert len(set(ends)) == len(ends), "each in a minute of its own"
    assert max(ends) * MINUTE_MS + MINUTE_MS < BASE_MS - DELAY_MS - MINUTE_MS
    closing = json.loads(PLAN.closing_packet().records[0][1])["ts"]
    assert closing - DELAY_MS > latest_ms + MINUTE_MS


LEDGER = Ledger({60_000: (2, 300), 120_000: (1, 50)}, {b"x", b"y"}, late=3, closing=1)
FOUND = Found(9, [(60_000, 2, 300), (120_000, 1, 50)], [(60_000, 2, 300), (120_000, 1, 50)], [b"x", b"y"], 3)


def test_books_that_agree() -> None:
    assert all(line.is_right for line in prove(LEDGER, FOUND))


def test_what_was_written_again_to_a_topic_is_no_error() -> None:
    again = FOUND._replace(topic=[*FOUND.topic, FOUND.topic[0]], dead_letters=[b"x", b"y", b"x"])
    assert all(line.is_right for line in prove(LEDGER, again))


@pytest.mark.parametrize(
    "wrong",
    [
        FOUND._replace(records=8),
        FOUND._replace(records=10),
        FOUND._replace(table=FOUND.table[:1]),
        FOUND._replace(table=[(60_000, 1, 300), (120_000, 2, 50)]),
        FOUND._replace(table=[(60_000, 2, 50), (120_000, 1, 300)]),
        FOUND._replace(table=[*FOUND.table, (0, 1, 1)]),
        FOUND._replace(table=[*FOUND.table, FOUND.table[0]]),
        FOUND._replace(topic=FOUND.topic[1:]),
        FOUND._replace(topic=[(60_000, 2, 299), (120_000, 1, 50)]),
        FOUND._replace(topic=[(60_000, 2, 299), *FOUND.topic]),
        FOUND._replace(dead_letters=[b"x"]),
        FOUND._replace(dead_letters=[b"x", b"z"]),
        FOUND._replace(dropped=2),
        FOUND._replace(dropped=4),
    ],
)
def test_one_figure_that_is_off_is_found(wrong: Found) -> None:
    assert not all(line.is_right for line in prove(LEDGER, wrong))


SAMPLES = [
    Sample(0.0, 0, 0),
    Sample(1.0, 1000, 0),
    Sample(2.0, 2000, 500),
    Sample(5.0, 2000, 500),
    Sample(6.0, 2000, 900),
]


def test_written_rates_are_over_the_last_seconds() -> None:
    assert written_rates(SAMPLES) == [(1.0, 1000.0), (2.0, 1000.0), (5.0, 0.0), (6.0, 0.0)]
    assert written_rates([]) == []


def test_processed_rates_spread_a_micro_batch_over_its_time() -> None:
    assert processed_rates(SAMPLES) == [(0.0, 0.0), (2.0, 250.0), (6.0, 100.0), (6.0, 0.0)]
    assert processed_rates([]) == []


def test_only_files_that_spark_committed_are_read(tmp_path: Path) -> None:
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    (tmp_path / "part-torn.parquet").write_text("not committed")
    for name, files in {"9.compact": ["a", "b"], "10": ["c"], ".10.crc": []}.items():
        lines = [json.dumps({"path": (tmp_path / f"{file} 1").as_uri(), "action": "add"}) for file in files]
        (log / name).write_text("\n".join(["v1", *lines]))
    assert sorted(table_files(tmp_path)) == [tmp_path / "a 1", tmp_path / "b 1", tmp_path / "c 1"]


def test_a_record_of_the_topic_of_minutes() -> None:
    value = b'{"minute":"2023-11-14T22:14:00.000Z","orders":3,"amount_cents":99}'
    assert minute_of(value) == (BASE_MS // MINUTE_MS * MINUTE_MS, 3, 99)

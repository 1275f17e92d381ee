"""Cases for frameworks: an application of theirs reads a topic and writes another, comes and goes."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from cases import Table
from confluent_kafka import ConsumerGroupState, TopicPartition
from confluent_kafka.admin import ConfigResource, OffsetSpec
from driver import DEADLINE_S, Record
from driver_frameworks import Framework, Work
from scene import Scene, now_ms
from targets import GROUPS

from peers.app import App
from peers.clients import consume

TABLE = Table(needs=GROUPS)
_PARTITIONS = 3
_DEADLINE_S, _POLL_S = 25.0, 0.05
_CUSTOMERS = ("ann", "bob", "cid", "dan", "eve")
_MINUTE_MS = 60_000


def _work(scene: Scene[Framework], application: str) -> Work:
    return Work(application, scene.name(), scene.topic(_PARTITIONS), scene.topic(_PARTITIONS))


def _customer(number: int) -> str:
    return _CUSTOMERS[number % len(_CUSTOMERS)]


def _feed(scene: Scene[Framework], work: Work, numbers: Sequence[int]) -> None:
    """Orders of five customers, those of each in one partition."""
    for number in numbers:
        order = {"number": number, "customer": _customer(number)}
        partition = number % len(_CUSTOMERS) % _PARTITIONS
        scene.feed(work.orders, [Record(order["customer"].encode(), json.dumps(order).encode(), partition=partition)])


def _ends(scene: Scene[Framework], topic: str) -> int:
    """The sum of the next offsets: as many records as there are, since no one deletes any."""
    places = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(_PARTITIONS)}
    return sum(asked.result(DEADLINE_S).offset for asked in scene.stage.admin.list_offsets(places).values())


def _answers(scene: Scene[Framework], topic: str) -> list[dict[str, Any]]:
    """Partition by partition, each in its order."""
    read = [record for number in range(_PARTITIONS) for record in consume(scene.bootstrap, topic, number)]
    return [json.loads(record.value or b"null") for record in read]


def _shares(scene: Scene[Framework], group: str) -> list[int]:
    """How many partitions each member has; none before all are told."""
    (described,) = scene.stage.admin.describe_consumer_groups([group]).values()
    found = described.result(DEADLINE_S)
    if found.state != ConsumerGroupState.STABLE:
        return []
    return sorted(len(member.assignment.topic_partitions) for member in found.members)


def _until(app: App, condition: Callable[[], bool]) -> None:
    """An application takes seconds to start; one that fails is not waited for."""
    give_up_at = time.monotonic() + _DEADLINE_S
    while not condition():
        app.check()
        assert time.monotonic() < give_up_at, "did not become true"
        time.sleep(_POLL_S)


def _answered(scene: Scene[Framework], work: Work, count: int) -> None:
    """Until there are that many answers, while the application runs."""
    with scene.client.start(work) as app:
        _until(app, lambda: _ends(scene, work.answers) >= count)


@TABLE.case("Applications", "every record is answered once, in the order of its key")
def every_record_answered(scene: Scene[Framework]) -> None:
    work = _work(scene, "answers")
    _feed(scene, work, range(60))
    _answered(scene, work, 60)
    answers = _answers(scene, work.answers)
    assert sorted(answer["number"] for answer in answers) == list(range(60))
    for customer in _CUSTOMERS:
        numbers = [answer["number"] for answer in answers if answer["customer"] == customer]
        assert numbers == sorted(numbers)


@TABLE.case("Applications", "stopped and started again: it goes on where it was, and answers nothing twice")
def stopped_and_started(scene: Scene[Framework]) -> None:
    work = _work(scene, "answers")
    _feed(scene, work, range(30))
    _answered(scene, work, 30)
    _feed(scene, work, range(30, 50))
    _answered(scene, work, 50)
    assert sorted(answer["number"] for answer in _answers(scene, work.answers)) == list(range(50))


@TABLE.case("Applications", "two share the partitions; one stops, and the other has all")
def share_and_leave(scene: Scene[Framework]) -> None:
    work = _work(scene, "answers")
    with scene.client.start(work, "one") as one:
        with scene.client.start(work, "other") as other:
            _until(other, lambda: _shares(scene, work.group) == [1, 2])
            _feed(scene, work, range(30))
            _until(one, lambda: _ends(scene, work.answers) >= 30)
        _until(one, lambda: _shares(scene, work.group) == [3])
        _feed(scene, work, range(30, 60))
        _until(one, lambda: _ends(scene, work.answers) >= 60)
    assert sorted(answer["number"] for answer in _answers(scene, work.answers)) == list(range(60))


@TABLE.case("Applications", "records in lots, answered in lots")
def lots(scene: Scene[Framework]) -> None:
    work = _work(scene, "lots")
    _feed(scene, work, range(100))
    _answered(scene, work, 100)
    answers = _answers(scene, work.answers)
    assert sorted(answer["number"] for answer in answers) == list(range(100))
    assert max(answer["lot"] for answer in answers) > 1


def _expect_counts(scene: Scene[Framework], work: Work, orders: int) -> None:
    totals = Counter((answer["customer"], answer["total"]) for answer in _answers(scene, work.answers))
    each = orders // len(_CUSTOMERS)
    assert totals == Counter((customer, total) for customer in _CUSTOMERS for total in range(1, each + 1))


@TABLE.case("State", "counts by key go on after a restart on another disk, from a compacted changelog topic")
def state_is_restored(scene: Scene[Framework]) -> None:
    work = _work(scene, "counts")
    _feed(scene, work, range(30))
    _answered(scene, work, 30)
    _feed(scene, work, range(30, 50))
    with scene.client.start(work, "another disk") as app:
        _until(app, lambda: _ends(scene, work.answers) >= 50)
    _expect_counts(scene, work, 50)
    assert "Recovery successful" in app.output()
    (changelog,) = (topic for topic in _topics(scene) if topic.startswith(f"changelog__{work.group}--"))
    assert scene.leaders(changelog) == [1] * _PARTITIONS
    (asked,) = scene.stage.admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, changelog)]).values()
    assert asked.result(DEADLINE_S)["cleanup.policy"].value == "compact"


@TABLE.case("State", "grouped by another key through a topic, and counted in windows")
def windows(scene: Scene[Framework]) -> None:
    work = _work(scene, "windows")
    start = now_ms() // _MINUTE_MS * _MINUTE_MS - 10 * _MINUTE_MS
    products = ("oak", "elm", "ash")

    def order(product: str, timestamp: int) -> Record:
        return Record(b"key", json.dumps({"product": product}).encode(), timestamp=timestamp)

    scene.feed(work.orders, [order(products[i % 3], start + i) for i in range(30)])
    scene.feed(work.orders, [order(product, start + 5 * _MINUTE_MS) for product in products])
    with scene.client.start(work) as app:
        _until(app, lambda: _ends(scene, work.answers) >= 3)
    answers = _answers(scene, work.answers)
    assert [(answer["start"], answer["value"]) for answer in answers] == [(start, 10)] * 3
    assert any(topic.startswith(f"repartition__{work.group}--") for topic in _topics(scene))


def _topics(scene: Scene[Framework]) -> list[str]:
    return list(scene.stage.admin.list_topics(timeout=DEADLINE_S).topics)

"""A load that remembers what was acknowledged: an idempotent librdkafka producer of numbered records, in a thread."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.kits.processkit import wait_for

_MOST_S = 120.0
_MOST_UNANSWERED = 3_000
_PAUSE_S = 0.002
_FLUSH_S = 60.0
_ANSWER_S = 30.0
_READ_S = 60.0
_READ_AT_ONCE = 1_000

_SETTINGS: dict[str, str | int | float | bool] = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 2,
    "message.timeout.ms": 90_000,
    # A client gives up on a broker that says nothing as fast as the brokers themselves do.
    "request.timeout.ms": 2_000,
    "socket.timeout.ms": 3_000,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 200,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 200,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "broker.address.family": "v4",
    "log_level": 0,
}


class Load:
    """Writes 0, 1, 2, ... to each of some partitions from when it is made until it is stopped.

    Always: a number is acknowledged at most once, and nobody else writes to those partitions.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: Sequence[int], *, size: int = 100) -> None:
        self.topic = topic
        self.partitions = tuple(partitions)
        self.offsets: dict[int, dict[int, int]] = {partition: {} for partition in partitions}
        """Of what was acknowledged, by partition and number; negative where the broker did not say."""
        self.failures: list[str] = []
        self.longest_gap_s = dict.fromkeys(partitions, 0.0)
        """Between two acknowledgements of one partition."""
        self.sent = 0
        """To each partition."""
        self._last_s: dict[int, float] = {}
        self._size = size
        self._producer = Producer({"bootstrap.servers": bootstrap, **_SETTINGS})
        self._told_to_stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        until = time.monotonic() + _MOST_S
        try:
            while not self._told_to_stop.is_set() and time.monotonic() < until:
                if len(self._producer) < _MOST_UNANSWERED:
                    self._send_next()
                self._producer.poll(_PAUSE_S)
            left = self._producer.flush(_FLUSH_S)
        except KafkaException as failure:
            self.failures.append(f"the producer gave up: {failure}")
            return
        if left:
            self.failures.append(f"{left} records were neither acknowledged nor refused")

    def _send_next(self) -> None:
        value = self._value(self.sent)
        for partition in self.partitions:
            on_delivery = partial(self._delivered, partition, self.sent)
            self._producer.produce(self.topic, value, partition=partition, on_delivery=on_delivery)
        self.sent += 1

    def _value(self, number: int) -> bytes:
        return b"%d" % number + b" " * self._size

    def _delivered(self, partition: int, number: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(f"{number} to {partition}: {error}")
            return
        offset, now_s = message.offset(), time.monotonic()
        self.offsets[partition][number] = -1 if offset is None else offset
        gap_s = now_s - self._last_s.get(partition, now_s)
        self.longest_gap_s[partition] = max(self.longest_gap_s[partition], gap_s)
        self._last_s[partition] = now_s

    # Waiting

    def wait_for_more(self, count: int, partitions: Sequence[int] = ()) -> None:
        """Until so many of what is sent from now on are acknowledged in each of these partitions, or of all."""
        wanted, goal = partitions or self.partitions, self.sent + count

        def are_there() -> bool:
            assert not self.failures, self.failures[:3]
            return all(goal in self.offsets[partition] for partition in wanted)

        try:
            wait_for(are_there, f"the acknowledgement of {goal} in each of {list(wanted)}")
        except AssertionError as failure:
            failure.add_note(f"acknowledged are {self}")
            raise

    def stop(self) -> None:
        """All that was sent is acknowledged, or it failed."""
        self._told_to_stop.set()
        self._thread.join(_FLUSH_S + 5)
        assert not self._thread.is_alive(), "the load does not end"

    def abandon(self) -> None:
        """The test is over, however it went: nobody waits for what is not acknowledged."""
        self._told_to_stop.set()
        while self._thread.is_alive():
            self._producer.purge()
            self._thread.join(_PAUSE_S)

    def __repr__(self) -> str:
        return ", ".join(f"{partition}: {len(self.offsets[partition])} of {self.sent}" for partition in self.partitions)

    # What must hold at the end

    def check(self, found: Mapping[int, Sequence[bytes]]) -> None:
        """Everything was acknowledged, and is there once, in order, where it was said to be."""
        assert not self.failures, self.failures[:3]
        for partition in self.partitions:
            name = f"{self.topic}-{partition}"
            numbers = [int(value) for value in found[partition]]
            doubled = [number for number, times in Counter(numbers).items() if times > 1]
            assert not doubled, f"{name} has {len(doubled)} records more than once: {doubled[:5]}"
            lost = sorted(set(range(self.sent)).difference(numbers))
            assert not lost, f"{name} has lost {len(lost)} of {self.sent}: {lost[:5]}"
            assert numbers == list(range(self.sent)), f"{name} is out of order"
            offsets = self.offsets[partition]
            assert sorted(offsets) == numbers
            misplaced = {number: at for number, at in offsets.items() if at >= 0 and numbers[at] != number}
            assert not misplaced, f"{name} has not at its offset what was acknowledged there: {misplaced}"


def read_all(bootstrap: str, topic: str, partitions: Sequence[int]) -> dict[int, list[bytes]]:
    """The values of all committed records, by partition, each at the place of its offset."""
    settings = {"group.id": "none", "enable.auto.commit": False, "fetch.wait.max.ms": 50, "log_level": 0}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    try:
        found: dict[int, list[bytes]] = {partition: [] for partition in partitions}
        ends = {
            one: consumer.get_watermark_offsets(TopicPartition(topic, one), timeout=_ANSWER_S)[1] for one in partitions
        }
        consumer.assign([TopicPartition(topic, one, 0) for one in partitions])
        give_up_at = time.monotonic() + _READ_S
        while any(len(found[one]) < ends[one] for one in partitions):
            assert time.monotonic() < give_up_at, f"read {[len(one) for one in found.values()]} of {ends}"
            for message in consumer.consume(_READ_AT_ONCE, timeout=_PAUSE_S):
                _take(message, found)
        return found
    finally:
        consumer.close()


def _take(message: Message, found: dict[int, list[bytes]]) -> None:
    error, partition, value = message.error(), message.partition(), message.value()
    assert error is None, error
    assert partition is not None
    assert value is not None
    assert message.offset() == len(found[partition]), "a gap, or a record read twice"
    found[partition].append(value)

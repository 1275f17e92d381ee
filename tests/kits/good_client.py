"""A process that plays a good client: librdkafka writes a record, and reads it back, again and again.

`python good_client.py PORT TOPIC` prints `ready` when it has read its first records, and runs until its standard input
ends. Then it prints one line of JSON: how long each record took since then to be acknowledged and to be read, what
failed, and what was acknowledged and never read.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

RATE_S = 0.005
"""Between two records."""
DRAIN_S = 20.0
WARM_UP = 100
"""So many records are read before times count: connections and metadata are there then."""


class GoodClient:
    def __init__(self, port: int, topic: str) -> None:
        self._topic = topic
        servers = {"bootstrap.servers": f"127.0.0.1:{port}", "socket.nagle.disable": True}
        self._producer = Producer({**servers, "acks": "all", "linger.ms": 0, "enable.idempotence": True})
        self._consumer = Consumer(
            {**servers, "group.id": f"good-{topic}", "auto.offset.reset": "earliest", "fetch.wait.max.ms": 100}
        )
        self.written_ms: list[float] = []
        self.read_ms: list[float] = []
        self.failures: list[str] = []
        self._acknowledged: dict[int, float] = {}
        """When the record at this offset was sent."""
        self._warm_s: float | None = None
        """When enough records were read. Times of records that were sent before do not count."""
        self._is_over = threading.Event()

    def run(self) -> None:
        threading.Thread(target=self._wait_for_the_end, daemon=True).start()
        self._consumer.assign([TopicPartition(self._topic, 0, 0)])
        seen: set[int] = set()
        number = 0
        next_s = time.monotonic()
        while not self._is_over.is_set():
            if time.monotonic() >= next_s:
                self._produce(number)
                number += 1
                next_s = time.monotonic() + RATE_S
            self._producer.poll(0)
            self._read(seen, 0.001)
            if self._warm_s is None and len(seen) >= WARM_UP:
                self._warm_s = time.monotonic()
                print("ready", flush=True)
        self._producer.flush(DRAIN_S)
        deadline_s = time.monotonic() + DRAIN_S
        while not seen >= self._acknowledged.keys() and time.monotonic() < deadline_s:
            self._read(seen, 0.1)
        answered = len(self._acknowledged) + len(self.failures)
        if answered < number:
            self.failures.append(f"{number - answered} records were never answered")
        lost = sorted(self._acknowledged.keys() - seen)
        print(json.dumps([self.written_ms, self.read_ms, self.failures, lost]), flush=True)
        self._consumer.close()

    def _wait_for_the_end(self) -> None:
        sys.stdin.read()
        self._is_over.set()

    def _produce(self, number: int) -> None:
        sent_s = time.monotonic()

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failures.append(str(error))
                return
            if self._counts(sent_s):
                self.written_ms.append((time.monotonic() - sent_s) * 1000)
            offset = message.offset()
            assert offset is not None
            self._acknowledged[offset] = sent_s

        self._producer.produce(self._topic, value=b"%f %d" % (sent_s, number), on_delivery=delivered)

    def _read(self, seen: set[int], timeout_s: float) -> None:
        for message in self._consumer.consume(100, timeout_s):
            error, value, offset = message.error(), message.value(), message.offset()
            if error is not None:
                self.failures.append(str(error))
                continue
            assert value is not None
            assert offset is not None
            seen.add(offset)
            sent_s = float(value.split()[0])
            if self._counts(sent_s):
                self.read_ms.append((time.monotonic() - sent_s) * 1000)

    def _counts(self, sent_s: float) -> bool:
        return self._warm_s is not None and sent_s >= self._warm_s


if __name__ == "__main__":
    GoodClient(int(sys.argv[1]), sys.argv[2]).run()

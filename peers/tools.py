"""Kafka's Java clients and command line tools, all in one JVM that stays up (tools/java/ClientShell.java)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from peers import home
from peers.process import SMALL_JVM, JavaServer, java_command
from peers.shell import Shell

_MAINS = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
}
_OLD_MAINS = {
    "kafka-console-producer": "kafka.tools.ConsoleProducer",
    "kafka-broker-api-versions": "kafka.admin.BrokerApiVersionsCommand",
}
"""Where Kafka 3.9 has them."""


class Ran(NamedTuple):
    """How a tool ended and what it printed."""

    status: int
    out: str
    err: str


class JavaShell(Shell):
    """One version's clients and tools. A tool runs as its script would, only without a JVM of its own."""

    def __init__(self, version: str) -> None:
        self.version = version
        options = [*SMALL_JVM, "-Dlog4j2.statusLoggerLevel=OFF"]
        super().__init__(java_command(version, "ClientShell", (), options))

    def run(self, tool: str, arguments: Sequence[str], given: str = "") -> Ran:
        main = _MAINS[tool]
        if self.version == home.KAFKA_ZOOKEEPER:
            main = _OLD_MAINS.get(tool, main)
        answer = self.ask({"op": "tool", "main": main, "arguments": list(arguments), "given": given})
        return Ran(answer["status"], answer["out"], answer["err"])


class ReplicaVerification(JavaServer):
    """kafka-replica-verification: reads all replicas of a topic, compares them and reports, until it is stopped."""

    def __init__(self, version: str, directory: Path, bootstrap: str, topic: str) -> None:
        options = ["--broker-list", bootstrap, "--topics-include", topic, "--report-interval-ms", "200"]
        super().__init__(version, "org.apache.kafka.tools.ReplicaVerificationTool", options, directory=directory)

    def is_ready(self) -> bool:
        return "verification process is started" in self.output()

"""Cases for the tools of Kafka's bin directory: what they print and how they end."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

from cases import Table
from cases_records import some_records
from driver import Record
from driver_shell import Tools
from scene import Scene, eventually, now_ms
from tool_runs import ok, refused, run

TABLE = Table()
_HOUR_MS = 3_600_000


@TABLE.case("kafka-topics", "--create, --describe")
def topics_create(scene: Scene[Tools]) -> None:
    topic = scene.name()
    options = ["--partitions", "2", "--replication-factor", "1", "--config", "retention.ms=123456"]
    out = ok(scene, "kafka-topics", "--create", "--topic", topic, *options)
    assert f"Created topic {topic}." in out
    eventually(lambda: scene.is_ready(topic, 2))
    lines = ok(scene, "kafka-topics", "--describe", "--topic", topic).splitlines()
    head = re.compile(rf"Topic: {topic}\tTopicId: \S{{22}}\tPartitionCount: 2\tReplicationFactor: 1\tConfigs: (\S+)\s*")
    found = head.fullmatch(lines[0])
    assert found is not None, lines[0]
    assert "retention.ms=123456" in found[1].split(",")
    for number, line in enumerate(lines[1:]):
        assert line.startswith(f"\tTopic: {topic}\tPartition: {number}\tLeader: 1\tReplicas: 1\tIsr: 1"), line
    assert len(lines) == 3


@TABLE.case("kafka-topics", "--create --if-not-exists")
def topics_if_not_exists(scene: Scene[Tools]) -> None:
    topic = scene.topic(partitions=2)
    ok(scene, "kafka-topics", "--create", "--if-not-exists", "--topic", topic, "--partitions", "7")
    assert scene.leaders(topic) == [1, 1]


@TABLE.case("kafka-topics", "--list, with and without --topic")
def topics_list(scene: Scene[Tools]) -> None:
    topics = {scene.topic(), scene.topic()}
    assert topics <= set(ok(scene, "kafka-topics", "--list").split())
    one = min(topics)
    assert ok(scene, "kafka-topics", "--list", "--topic", one).split() == [one]


@TABLE.case("kafka-topics", "--describe: what is unhealthy (nothing), what has configurations")
def topics_describe_some(scene: Scene[Tools]) -> None:
    changed = scene.topic(segment_ms=70000)
    unhealthy = ("--under-replicated-partitions", "--unavailable-partitions", "--under-min-isr-partitions")
    for option in unhealthy:
        assert ok(scene, "kafka-topics", "--describe", option).split() == []
    assert f"Topic: {changed}\t" in ok(scene, "kafka-topics", "--describe", "--topics-with-overrides")


@TABLE.case("kafka-topics", "--alter --partitions")
def topics_alter(scene: Scene[Tools]) -> None:
    topic = scene.topic()
    ok(scene, "kafka-topics", "--alter", "--topic", topic, "--partitions", "3")
    eventually(lambda: scene.is_ready(topic, 3))


@TABLE.case("kafka-topics", "--delete")
def topics_delete(scene: Scene[Tools]) -> None:
    topic = scene.topic()
    ok(scene, "kafka-topics", "--delete", "--topic", topic)
    eventually(lambda: scene.leaders(topic) == [])


@TABLE.case("kafka-topics", "errors")
def topics_errors(scene: Scene[Tools]) -> None:
    topic = scene.topic(partitions=2)
    create = ("kafka-topics", "--create", "--topic")
    failed = "Error while executing topic command : "
    refused(scene, f"{failed}Topic '{topic}' already exists", *create, topic)
    refused(scene, failed, *create, scene.name(), "--replication-factor", "2")
    refused(scene, failed, *create, scene.name(), "--config", "retention.ms=soon")
    refused(scene, failed, *create, "not/a/name")
    refused(scene, failed, "kafka-topics", "--alter", "--topic", topic, "--partitions", "1")
    refused(scene, "does not exist as expected", "kafka-topics", "--describe", "--topic", "nobody-made-this")
    refused(scene, "does not exist as expected", "kafka-topics", "--delete", "--topic", "nobody-made-this")


@TABLE.case("kafka-configs", "topics: --alter and --describe")
def configs_topic(scene: Scene[Tools]) -> None:
    topic = scene.topic()
    entity = ("--entity-type", "topics", "--entity-name", topic)
    change = "retention.ms=123456,cleanup.policy=[compact,delete]"
    out = ok(scene, "kafka-configs", "--alter", *entity, "--add-config", change)
    assert f"Completed updating config for topic {topic}." in out
    eventually(lambda: "retention.ms=123456" in ok(scene, "kafka-configs", "--describe", *entity))
    found = ok(scene, "kafka-configs", "--describe", *entity)
    assert (
        "cleanup.policy=compact,delete sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact" in found
    )
    assert "DEFAULT_CONFIG:log.cleanup.policy=delete" in found
    ok(scene, "kafka-configs", "--alter", *entity, "--delete-config", "retention.ms")
    eventually(lambda: "retention.ms" not in ok(scene, "kafka-configs", "--describe", *entity))


@TABLE.case("kafka-configs", "topics: --describe --all")
def configs_topic_all(scene: Scene[Tools]) -> None:
    topic = scene.topic()
    entity = ("--entity-type", "topics", "--entity-name", topic)
    found = ok(scene, "kafka-configs", "--describe", "--all", *entity)
    assert "  max.message.bytes=1048588 sensitive=false synonyms={DEFAULT_CONFIG:message.max.bytes=1048588}" in found
    assert "  segment.bytes=1073741824 sensitive=false synonyms={DEFAULT_CONFIG:log.segment.bytes=1073741824}" in found


@TABLE.case("kafka-configs", "brokers: --alter and --describe, one and all")
def configs_broker(scene: Scene[Tools]) -> None:
    for entity in (("--entity-name", "1"), ("--entity-default",)):
        target = ("--entity-type", "brokers", *entity)
        change = "log.cleaner.backoff.ms=14321"
        ok(scene, "kafka-configs", "--alter", *target, "--add-config", change)
        eventually(lambda target=target, change=change: change in ok(scene, "kafka-configs", "--describe", *target))
        ok(scene, "kafka-configs", "--alter", *target, "--delete-config", "log.cleaner.backoff.ms")
        eventually(lambda target=target: "backoff" not in ok(scene, "kafka-configs", "--describe", *target))


@TABLE.case("kafka-configs", "brokers: --describe --all")
def configs_broker_all(scene: Scene[Tools]) -> None:
    found = ok(scene, "kafka-configs", "--describe", "--all", "--entity-type", "brokers", "--entity-name", "1")
    assert "  num.partitions=3 sensitive=false synonyms={STATIC_BROKER_CONFIG:num.partitions=3" in found
    assert f"  log.dirs={scene.stage.log_dir} sensitive=false" in found


@TABLE.case("kafka-configs", "errors")
def configs_errors(scene: Scene[Tools]) -> None:
    topic = scene.topic()
    alter = ("kafka-configs", "--alter", "--entity-type", "topics", "--entity-name", topic, "--add-config")
    refused(scene, "InvalidConfigurationException", *alter, "retention.ms=soon")
    refused(scene, "InvalidConfigurationException", *alter, "no.such.config=1")


@TABLE.case("kafka-get-offsets", "--time: earliest, latest, greatest timestamp, a timestamp")
def get_offsets(scene: Scene[Tools]) -> None:
    topic = scene.topic(partitions=2)
    base = now_ms() - _HOUR_MS
    for index in range(3):
        scene.feed(topic, [Record(None, b"v", timestamp=base + 1000 * index)])
    scene.feed(topic, [Record(None, b"v", timestamp=base + 500)])
    scene.delete_records(topic, before=1)
    expected = {"earliest": 1, "latest": 4, "max-timestamp": 2, str(base + 1500): 2, "-1": 4, "-2": 1, "-3": 2}
    for moment, offset in expected.items():
        options = ["--topic-partitions", f"{topic}:0", "--time", moment]
        assert ok(scene, "kafka-get-offsets", *options).split() == [f"{topic}:0:{offset}"], moment


@TABLE.case("kafka-get-offsets", "all partitions of a topic")
def get_offsets_of_topic(scene: Scene[Tools]) -> None:
    topic = scene.topic(partitions=3)
    scene.feed(topic, [Record(None, b"v", partition=number) for number in (0, 2, 2)])
    found = ok(scene, "kafka-get-offsets", "--topic", topic).split()
    assert found == [f"{topic}:0:1", f"{topic}:1:0", f"{topic}:2:2"]


@TABLE.case("kafka-delete-records", "--offset-json-file")
def delete_records_tool(scene: Scene[Tools]) -> None:
    topic = scene.topic()
    scene.feed(topic, some_records(10))
    plan = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 6}]}
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        Path(file.name).write_text(json.dumps(plan))
        out = ok(scene, "kafka-delete-records", "--offset-json-file", file.name)
    assert f"partition: {topic}-0\tlow_watermark: 6" in out
    options = ["--topic-partitions", f"{topic}:0", "--time", "earliest"]
    assert ok(scene, "kafka-get-offsets", *options).split() == [f"{topic}:0:6"]


@TABLE.case("kafka-log-dirs", "--describe")
def log_dirs_tool(scene: Scene[Tools]) -> None:
    topic = scene.topic(partitions=2)
    scene.feed(topic, some_records(10))
    out = ok(scene, "kafka-log-dirs", "--describe", "--topic-list", topic, "--broker-list", "1")
    (found,) = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    (directory,) = found["brokers"][0]["logDirs"]
    size = (scene.stage.log_dir / f"{topic}-0" / f"{0:020}.log").stat().st_size
    assert directory["logDir"] == str(scene.stage.log_dir)
    assert directory["error"] is None
    sizes = {entry["partition"]: (entry["size"], entry["offsetLag"]) for entry in directory["partitions"]}
    assert sizes == {f"{topic}-0": (size, 0), f"{topic}-1": (0, 0)}


@TABLE.case("kafka-producer-perf-test", "acks 0, 1 and all")
def producer_perf(scene: Scene[Tools]) -> None:
    topic = scene.topic(partitions=2)
    for acks in ("0", "1", "all"):
        load = ["--topic", topic, "--num-records", "2000", "--record-size", "100", "--throughput", "-1"]
        properties = [f"bootstrap.servers={scene.bootstrap}", f"acks={acks}", "compression.type=lz4"]
        ran = scene.client.tools.run("kafka-producer-perf-test", [*load, "--producer-props", *properties])
        assert ran.status == 0, ran.err
        assert "2000 records sent" in ran.out, ran.out
    found = ok(scene, "kafka-get-offsets", "--topic", topic).split()
    assert sum(int(line.rpartition(":")[2]) for line in found) == 6000


@TABLE.case("kafka-console-producer", "keys and headers, read by kafka-console-consumer")
def console_producer(scene: Scene[Tools]) -> None:
    topic = scene.topic()
    properties = ["--property", "parse.key=true", "--property", "parse.headers=true"]
    given = "a:1,b:2\tk1\tv1\nc:3\tk2\tv2\n"
    ok(scene, "kafka-console-producer", "--topic", topic, *properties, given=given)
    shown = ("print.key", "print.headers", "print.offset", "print.partition")
    options = [option for name in shown for option in ("--property", f"{name}=true")]
    place = ["--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages", "2"]
    assert ok(scene, "kafka-console-consumer", *place, *options).splitlines() == [
        "Partition:0\tOffset:0\ta:1,b:2\tk1\tv1",
        "Partition:0\tOffset:1\tc:3\tk2\tv2",
    ]


@TABLE.case("kafka-console-consumer", "--partition --offset, with timestamps")
def console_consumer(scene: Scene[Tools]) -> None:
    topic = scene.topic(partitions=2)
    base = now_ms() - _HOUR_MS
    scene.feed(topic, [Record(b"k%d" % i, b"v%d" % i, timestamp=base + i, partition=1) for i in range(5)])
    options = ["--property", "print.timestamp=true", "--property", "print.key=true"]
    place = ["--topic", topic, "--partition", "1", "--offset", "3", "--max-messages", "2"]
    found = ok(scene, "kafka-console-consumer", *place, *options).splitlines()
    assert found == [f"CreateTime:{base + i}\tk{i}\tv{i}" for i in (3, 4)]


@TABLE.case("kafka-console-consumer", "--isolation-level read_committed, --timeout-ms")
def console_consumer_committed(scene: Scene[Tools]) -> None:
    topic = scene.topic()
    scene.feed(topic, [Record(None, b"v%d" % i) for i in range(3)])
    place = ["--topic", topic, "--partition", "0", "--offset", "earliest"]
    ran = run(scene, "kafka-console-consumer", *place, "--isolation-level", "read_committed", "--timeout-ms", "1500")
    assert ran.out.splitlines()[:3] == ["v0", "v1", "v2"], ran.err


@TABLE.case("kafka-cluster", "cluster-id")
def cluster_id(scene: Scene[Tools]) -> None:
    ran = scene.client.tools.run("kafka-cluster", ["cluster-id", "--bootstrap-server", scene.bootstrap])
    assert re.fullmatch(r"Cluster ID: \S{22}\s*", ran.out), ran


@TABLE.case("kafka-broker-api-versions", "lists the broker and its APIs")
def broker_api_versions(scene: Scene[Tools]) -> None:
    out = ok(scene, "kafka-broker-api-versions")
    assert f"{scene.bootstrap} (id: 1 rack: null" in out
    served = (
        "Produce(0)", "Fetch(1)", "ListOffsets(2)", "Metadata(3)", "ApiVersions(18)", "CreateTopics(19)",
        "DeleteTopics(20)", "DeleteRecords(21)", "InitProducerId(22)", "OffsetForLeaderEpoch(23)",
        "DescribeConfigs(32)", "AlterConfigs(33)", "DescribeLogDirs(35)", "CreatePartitions(37)",
        "IncrementalAlterConfigs(44)", "DescribeCluster(60)", "DescribeTopicPartitions(75)",
    )  # fmt: skip
    for api in served:
        assert re.search(rf"{re.escape(api)}: \d", out), f"{api} is not served:\n{out}"

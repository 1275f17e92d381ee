"""The requests that could hold a broker's loop for longest: for each API the most expensive elements, many times."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tidelog.records.build import build_batch
from tidelog.wire import Message
from tidelog.wire.messages import (
    configs,
    controller,
    fetch,
    group_offsets,
    groups,
    headers,
    metadata,
    offsets,
    produce,
    topics,
)
from tidelog.wire.messages.group_records import GroupMetadataValue, MemberMetadata

BIG = "big"
"""A topic of 1000 partitions."""
SMALL = "small"
GROUP = "large-group"
"""A group of 4000 members."""
COMMITTED = "committed"
"""A group with an offset for each partition of BIG."""
BIG_PARTITIONS, MEMBERS = 1_000, 4_000
_TOPIC, _BROKER = 2, 4
_DUMMY = build_batch([(0, None, b"x" * 1000)] * 900)


class Case(NamedTuple):
    """A request with a number of elements."""

    name: str
    version: int
    build: Callable[[int], Message]
    elements_of_one: int = 1
    """How many elements each counts for."""


def _distinct(n: int) -> list[str]:
    return [f"{i:05x}" for i in range(n)]


def _indexes(n: int) -> list[int]:
    return [i % BIG_PARTITIONS for i in range(n)]


def _resource(kind: int, name: str) -> configs.DescribeConfigsResource:
    return configs.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)


def _incremental(name: str, kind: int = _TOPIC) -> configs.IncrementalAlterConfigsRequestAlterConfigsResource:
    config = configs.IncrementalAlterConfigsRequestAlterableConfig(name="retention.ms", config_operation=0, value="1")
    return configs.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=kind, resource_name=name, configs=[config]
    )


def _fetch(parts: list[fetch.FetchPartition], topic: str) -> fetch.FetchRequest:
    return fetch.FetchRequest(max_wait_ms=0, topics=[fetch.FetchTopic(topic=topic, partitions=parts)])


def _tagged(n: int) -> Message:
    request = metadata.MetadataRequest(topics=[])
    request._unknown = tuple((100 + tag, b"") for tag in range(n))
    return request


def _update(n: int) -> Message:
    """Of an earlier controller: decoded whole, and then refused."""
    state = controller.UpdateMetadataPartitionState(partition_index=0, isr=[1, 2, 3], replicas=[1, 2, 3])
    named = controller.UpdateMetadataTopicState(topic_name="t", partition_states=[state] * n)
    return controller.UpdateMetadataRequest(controller_epoch=0, broker_epoch=-1, topic_states=[named])


def _leader_and_isr(n: int) -> Message:
    state = controller.LeaderAndIsrPartitionState(partition_index=0, isr=[1, 2, 3], replicas=[1, 2, 3])
    named = controller.LeaderAndIsrTopicState(topic_name="t", partition_states=[state] * n)
    return controller.LeaderAndIsrRequest(controller_epoch=0, broker_epoch=-1, topic_states=[named])


CASES = [
    Case(
        "Metadata, one topic of 1000 partitions again and again",
        9,
        lambda n: metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name=BIG)] * n, allow_auto_topic_creation=False
        ),
    ),
    Case(
        "Metadata, unknown topics",
        9,
        lambda n: metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name=name) for name in _distinct(n)], allow_auto_topic_creation=False
        ),
    ),
    Case("Metadata, empty names", 1, lambda n: metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic()] * n)),
    Case("Metadata, unknown tagged fields", 9, _tagged),
    Case(
        "DescribeTopicPartitions, unknown topics",
        0,
        lambda n: metadata.DescribeTopicPartitionsRequest(
            topics=[metadata.DescribeTopicPartitionsRequestTopicRequest(name=name) for name in _distinct(n)]
        ),
    ),
    Case("FindCoordinator, keys", 4, lambda n: metadata.FindCoordinatorRequest(coordinator_keys=_distinct(n))),
    Case("FindCoordinator, empty keys", 4, lambda n: metadata.FindCoordinatorRequest(coordinator_keys=[""] * n)),
    Case(
        "FindCoordinator, keys of 30 kB",
        4,
        lambda n: metadata.FindCoordinatorRequest(coordinator_keys=["ä" * 15_000 + str(i) for i in range(n)]),
    ),
    Case(
        "DescribeConfigs, this broker again and again",
        4,
        lambda n: configs.DescribeConfigsRequest(
            resources=[_resource(_BROKER, "1")] * n, include_synonyms=True, include_documentation=True
        ),
    ),
    Case(
        "DescribeConfigs, unknown topics",
        4,
        lambda n: configs.DescribeConfigsRequest(resources=[_resource(_TOPIC, name) for name in _distinct(n)]),
    ),
    Case(
        "DescribeConfigs, this broker with many keys",
        4,
        lambda n: configs.DescribeConfigsRequest(
            resources=[
                configs.DescribeConfigsResource(
                    resource_type=_BROKER, resource_name="1", configuration_keys=_distinct(n)
                )
            ]
        ),
    ),
    Case(
        "IncrementalAlterConfigs, unknown topics",
        1,
        lambda n: configs.IncrementalAlterConfigsRequest(resources=[_incremental(name) for name in _distinct(n)]),
        2,
    ),
    Case(
        "IncrementalAlterConfigs, one topic with many keys",
        1,
        lambda n: configs.IncrementalAlterConfigsRequest(
            resources=[
                configs.IncrementalAlterConfigsRequestAlterConfigsResource(
                    resource_type=_TOPIC,
                    resource_name=SMALL,
                    configs=[
                        configs.IncrementalAlterConfigsRequestAlterableConfig(name=name, config_operation=0, value="1")
                        for name in _distinct(n)
                    ],
                )
            ],
            validate_only=True,
        ),
    ),
    Case(
        "AlterConfigs, unknown topics",
        2,
        lambda n: configs.AlterConfigsRequest(
            resources=[configs.AlterConfigsResource(resource_type=_TOPIC, resource_name=name) for name in _distinct(n)]
        ),
    ),
    Case(
        "DeleteTopics, unknown topics",
        6,
        lambda n: topics.DeleteTopicsRequest(
            topics=[topics.DeleteTopicState(name=name) for name in _distinct(n)], timeout_ms=1000
        ),
    ),
    Case(
        "CreateTopics, more than may be created",
        7,
        lambda n: topics.CreateTopicsRequest(
            topics=[topics.CreatableTopic(name=name, num_partitions=1) for name in _distinct(n)], timeout_ms=1000
        ),
    ),
    Case(
        "CreateTopics, invalid names",
        7,
        lambda n: topics.CreateTopicsRequest(
            topics=[topics.CreatableTopic(name=f"!{name}", num_partitions=0) for name in _distinct(n)], timeout_ms=1000
        ),
    ),
    Case(
        "CreatePartitions, unknown topics",
        3,
        lambda n: topics.CreatePartitionsRequest(
            topics=[topics.CreatePartitionsTopic(name=name, count=2) for name in _distinct(n)], timeout_ms=1000
        ),
    ),
    Case(
        "AlterPartitionReassignments, unknown partitions",
        1,
        lambda n: topics.AlterPartitionReassignmentsRequest(
            topics=[
                topics.ReassignableTopic(
                    name="none",
                    partitions=[topics.ReassignablePartition(partition_index=i, replicas=[1]) for i in range(n)],
                )
            ]
        ),
        2,
    ),
    Case(
        "ListPartitionReassignments, unknown partitions",
        0,
        lambda n: topics.ListPartitionReassignmentsRequest(
            topics=[topics.ListPartitionReassignmentsTopics(name="none", partition_indexes=list(range(n)))]
        ),
    ),
    Case(
        "ElectLeaders, unknown partitions",
        2,
        lambda n: topics.ElectLeadersRequest(
            topic_partitions=[topics.ElectLeadersRequestTopicPartitions(topic="none", partitions=list(range(n)))],
            timeout_ms=1000,
        ),
    ),
    Case(
        "DescribeLogDirs, unknown partitions",
        4,
        lambda n: topics.DescribeLogDirsRequest(
            topics=[topics.DescribableLogDirTopic(topic="none", partitions=list(range(n)))]
        ),
    ),
    Case("DescribeGroups, unknown groups", 5, lambda n: groups.DescribeGroupsRequest(groups=_distinct(n))),
    Case(
        "DescribeGroups, one group of 4000 members again and again",
        5,
        lambda n: groups.DescribeGroupsRequest(groups=[GROUP] * n),
    ),
    Case("DeleteGroups, unknown groups", 2, lambda n: groups.DeleteGroupsRequest(groups_names=_distinct(n))),
    Case("ListGroups, many states", 4, lambda n: groups.ListGroupsRequest(states_filter=_distinct(n))),
    Case(
        "JoinGroup, many protocols",
        9,
        lambda n: groups.JoinGroupRequest(
            group_id="j",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[groups.JoinGroupRequestProtocol(name=name, metadata=b"") for name in _distinct(n)],
        ),
    ),
    Case(
        "SyncGroup, many assignments",
        5,
        lambda n: groups.SyncGroupRequest(
            group_id=GROUP,
            generation_id=1,
            member_id="member-0",
            protocol_type="consumer",
            protocol_name="range",
            assignments=[groups.SyncGroupRequestAssignment(member_id=name, assignment=b"") for name in _distinct(n)],
        ),
    ),
    Case(
        "LeaveGroup, unknown members",
        5,
        lambda n: groups.LeaveGroupRequest(
            group_id=GROUP, members=[groups.MemberIdentity(member_id=name) for name in _distinct(n)]
        ),
    ),
    Case(
        "OffsetCommit, partitions that exist",
        9,
        lambda n: group_offsets.OffsetCommitRequest(
            group_id=COMMITTED,
            topics=[
                group_offsets.OffsetCommitRequestTopic(
                    name=BIG,
                    partitions=[
                        group_offsets.OffsetCommitRequestPartition(partition_index=i, committed_offset=1)
                        for i in _indexes(n)
                    ],
                )
            ],
        ),
    ),
    Case(
        "OffsetCommit, unknown topics",
        9,
        lambda n: group_offsets.OffsetCommitRequest(
            group_id=COMMITTED,
            topics=[
                group_offsets.OffsetCommitRequestTopic(
                    name=name, partitions=[group_offsets.OffsetCommitRequestPartition(partition_index=0)]
                )
                for name in _distinct(n)
            ],
        ),
        2,
    ),
    Case(
        "OffsetFetch, partitions",
        9,
        lambda n: group_offsets.OffsetFetchRequest(
            groups=[
                group_offsets.OffsetFetchRequestGroup(
                    group_id=COMMITTED,
                    topics=[group_offsets.OffsetFetchRequestTopics(name=BIG, partition_indexes=_indexes(n))],
                )
            ]
        ),
    ),
    Case(
        "OffsetFetch v7, topics",
        7,
        lambda n: group_offsets.OffsetFetchRequest(
            group_id=COMMITTED,
            topics=[group_offsets.OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in _distinct(n)],
        ),
        2,
    ),
    Case(
        "OffsetFetch, all of one group again and again",
        9,
        lambda n: group_offsets.OffsetFetchRequest(
            groups=[group_offsets.OffsetFetchRequestGroup(group_id=COMMITTED, topics=None)] * n
        ),
    ),
    Case(
        "OffsetFetch, unknown groups",
        9,
        lambda n: group_offsets.OffsetFetchRequest(
            groups=[group_offsets.OffsetFetchRequestGroup(group_id=name, topics=None) for name in _distinct(n)]
        ),
    ),
    Case(
        "OffsetDelete, partitions",
        0,
        lambda n: group_offsets.OffsetDeleteRequest(
            group_id=COMMITTED,
            topics=[
                group_offsets.OffsetDeleteRequestTopic(
                    name="none",
                    partitions=[group_offsets.OffsetDeleteRequestPartition(partition_index=i) for i in range(n)],
                )
            ],
        ),
    ),
    Case(
        "ListOffsets, partitions again and again",
        9,
        lambda n: offsets.ListOffsetsRequest(
            topics=[
                offsets.ListOffsetsTopic(
                    name=BIG,
                    partitions=[offsets.ListOffsetsPartition(partition_index=i, timestamp=-1) for i in _indexes(n)],
                )
            ]
        ),
    ),
    Case(
        "ListOffsets, unknown partitions",
        9,
        lambda n: offsets.ListOffsetsRequest(
            topics=[
                offsets.ListOffsetsTopic(
                    name="none",
                    partitions=[offsets.ListOffsetsPartition(partition_index=i, timestamp=-1) for i in range(n)],
                )
            ]
        ),
    ),
    Case(
        "OffsetForLeaderEpoch, partitions",
        4,
        lambda n: offsets.OffsetForLeaderEpochRequest(
            topics=[
                offsets.OffsetForLeaderTopic(
                    topic=BIG,
                    partitions=[offsets.OffsetForLeaderPartition(partition=i, leader_epoch=0) for i in _indexes(n)],
                )
            ]
        ),
    ),
    Case(
        "DeleteRecords, unknown partitions",
        2,
        lambda n: offsets.DeleteRecordsRequest(
            topics=[
                offsets.DeleteRecordsTopic(
                    name="none",
                    partitions=[offsets.DeleteRecordsPartition(partition_index=i, offset=0) for i in range(n)],
                )
            ],
            timeout_ms=1000,
        ),
    ),
    Case(
        "Fetch, unknown partitions",
        12,
        lambda n: _fetch([fetch.FetchPartition(partition=i, partition_max_bytes=1000) for i in range(n)], "none"),
    ),
    Case(
        "Fetch, partitions again and again",
        12,
        lambda n: _fetch([fetch.FetchPartition(partition=i, partition_max_bytes=1000) for i in _indexes(n)], BIG),
    ),
    Case(
        "Fetch, forgotten partitions",
        12,
        lambda n: fetch.FetchRequest(
            max_wait_ms=0,
            forgotten_topics_data=[fetch.FetchRequestForgottenTopic(topic="none", partitions=list(range(n)))],
        ),
    ),
    Case(
        "Produce, unknown partitions",
        9,
        lambda n: produce.ProduceRequest(
            acks=1,
            timeout_ms=1000,
            topic_data=[
                produce.TopicProduceData(
                    name="none", partition_data=[produce.PartitionProduceData(index=i, records=b"") for i in range(n)]
                )
            ],
        ),
    ),
    Case(
        "Produce, batches of 900 kB",
        9,
        lambda n: produce.ProduceRequest(
            acks=1,
            timeout_ms=30_000,
            topic_data=[
                produce.TopicProduceData(
                    name=BIG, partition_data=[produce.PartitionProduceData(index=i, records=_DUMMY) for i in range(n)]
                )
            ],
        ),
    ),
    Case(
        "AlterPartition, unknown topics",
        3,
        lambda n: controller.AlterPartitionRequest(
            broker_id=1,
            broker_epoch=-1,
            topics=[
                controller.AlterPartitionRequestTopicData(
                    topic_id=i.to_bytes(16, "big"),
                    partitions=[controller.AlterPartitionRequestPartitionData(partition_index=0)],
                )
                for i in range(1, n + 1)
            ],
        ),
        2,
    ),
    Case("UpdateMetadata of an earlier controller", 8, _update, 7),
    Case("LeaderAndIsr of an earlier controller", 7, _leader_and_isr, 7),
    Case(
        "ApiVersions, a long name", 3, lambda n: headers.ApiVersionsRequest(client_software_name="a-" * min(n, 16_000))
    ),
]


def large_group() -> GroupMetadataValue:
    """GROUP as its record holds it."""
    return GroupMetadataValue(
        protocol_type="consumer",
        generation=1,
        protocol="range",
        leader="member-0",
        current_state_timestamp=0,
        members=[
            MemberMetadata(
                member_id=f"member-{number}",
                client_id="client",
                client_host="/127.0.0.1",
                rebalance_timeout=3_600_000,
                session_timeout=1_800_000,
                subscription=bytes(100),
                assignment=bytes(100),
            )
            for number in range(MEMBERS)
        ],
    )

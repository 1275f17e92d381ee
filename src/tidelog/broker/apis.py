"""What this broker serves: the versions of Kafka 4.1, and Kafka 3.9's of the requests between brokers."""

from __future__ import annotations

from tidelog.broker.dispatch import Served
from tidelog.broker.handlers import (
    alter_partition,
    api_versions,
    configs,
    control,
    coordinators,
    elections,
    fetch,
    group_offsets,
    groups,
    log_dirs,
    metadata,
    offsets,
    produce,
    producers,
    reassignment,
    topics,
)
from tidelog.broker.handlers.control import LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA
from tidelog.broker.handlers.refused_fetch import refused_fetch
from tidelog.controller.requests import MOST_NAMED
from tidelog.groups import MAX_MEMBERS
from tidelog.wire.versions import Versions

CONTROL_KEYS = frozenset((LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA))
"""Served before all others (S7.3)."""

BROKER_KEYS = CONTROL_KEYS | {7, 27, 56, 58, 67}
"""Requests that only brokers send: also ControlledShutdown, WriteTxnMarkers, AlterPartition, Envelope and
AllocateProducerIds. Some are not served, but Kafka's brokers may send them."""
BY_CONTROLLER = 1_500_000
"""Elements of a request of the controller, which may have to name every partition with its replicas and its ISR: seven
for each of 200,000 partitions. Whether it is the controller's is known when it is decoded, so anybody can send as much;
with more of them the loop would be held for too long when they are let go."""
BY_BROKERS = 50_000
"""Elements that a request may have at least if brokers send it to each other, be the limit for clients lower: at most
MOST_NAMED partitions, each in a topic of its own, and as many that are forgotten."""
assert BY_BROKERS > 4 * MOST_NAMED
BY_LEADERS = 250_000
"""Elements of a request of a leader to the controller, which names at most some thousand partitions."""
OF_TOPICS = 50_000
"""Elements of a request that has the controller write something for each topic or partition."""
OF_PARTITIONS = 20_000
"""Elements of a request that may ask for all partitions in place of naming so many."""
OF_ONE_GO = 10_000
"""Elements of a request of which much is done in one go: members of a group, settings of a topic."""
assert OF_ONE_GO >= MAX_MEMBERS, "the leader of a group names all its members in one SyncGroup"
FEW = 1_000
"""Elements of a request that names protocols or states, of which there are a handful."""

SERVED: dict[int, Served] = {
    0: Served(Versions(3, 13), produce.produce),
    1: Served(Versions(4, 18), fetch.fetch, min_elements=BY_BROKERS),
    2: Served(Versions(1, 10), offsets.list_offsets, min_elements=BY_BROKERS),
    3: Served(Versions(0, 13), metadata.metadata, one_at_a_time=True),
    LEADER_AND_ISR: Served(Versions(5, 7), control.leader_and_isr, BY_CONTROLLER, peek=control.peek),
    STOP_REPLICA: Served(Versions(3, 4), control.stop_replica, BY_CONTROLLER, peek=control.peek),
    UPDATE_METADATA: Served(Versions(7, 8), control.update_metadata, BY_CONTROLLER, peek=control.peek),
    7: Served(Versions(2, 3), alter_partition.controlled_shutdown),
    8: Served(Versions(2, 10), group_offsets.offset_commit),
    9: Served(Versions(1, 10), group_offsets.offset_fetch, one_at_a_time=True, too_large=refused_fetch),
    10: Served(Versions(0, 6), coordinators.find_coordinator, one_at_a_time=True),
    11: Served(Versions(0, 9), groups.join_group, FEW, one_at_a_time=True),
    12: Served(Versions(0, 4), groups.heartbeat),
    13: Served(Versions(0, 5), groups.leave_group, OF_ONE_GO),
    14: Served(Versions(0, 5), groups.sync_group, OF_ONE_GO),
    15: Served(Versions(0, 6), groups.describe_groups, one_at_a_time=True),
    16: Served(Versions(0, 5), groups.list_groups, FEW, one_at_a_time=True),
    18: Served(Versions(0, 4), api_versions.api_versions),
    19: Served(Versions(2, 7), topics.create_topics, OF_TOPICS, one_at_a_time=True),
    20: Served(Versions(1, 6), topics.delete_topics, OF_PARTITIONS),
    21: Served(Versions(0, 2), offsets.delete_records),
    22: Served(Versions(0, 5), producers.init_producer_id),
    23: Served(Versions(2, 4), offsets.offset_for_leader_epoch),
    32: Served(Versions(1, 4), configs.describe_configs, one_at_a_time=True),
    33: Served(Versions(0, 2), configs.alter_configs, OF_ONE_GO),
    35: Served(Versions(1, 4), log_dirs.describe_log_dirs, one_at_a_time=True),
    37: Served(Versions(0, 3), topics.create_partitions, OF_TOPICS),
    42: Served(Versions(0, 2), groups.delete_groups, OF_ONE_GO),
    43: Served(Versions(0, 2), elections.elect_leaders, OF_PARTITIONS, one_at_a_time=True),
    44: Served(Versions(0, 1), configs.incremental_alter_configs, OF_ONE_GO),
    45: Served(Versions(0, 1), reassignment.alter_partition_reassignments, OF_TOPICS),
    46: Served(Versions(0, 0), reassignment.list_partition_reassignments, one_at_a_time=True),
    47: Served(Versions(0, 0), group_offsets.offset_delete, OF_ONE_GO),
    56: Served(Versions(0, 3), alter_partition.alter_partition, BY_LEADERS),
    60: Served(Versions(0, 2), metadata.describe_cluster),
    75: Served(Versions(0, 0), metadata.describe_topic_partitions, OF_TOPICS, one_at_a_time=True),
}

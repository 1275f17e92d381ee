"""All clients and all cases, for the test modules and for docs/COMPATIBILITY.md."""

from __future__ import annotations

from typing import NamedTuple

import cases_admin
import cases_cluster
import cases_cluster_leaders
import cases_connect
import cases_frameworks
import cases_franz_go
import cases_groups
import cases_groups_admin
import cases_groups_consumers
import cases_groups_members
import cases_groups_mixed
import cases_groups_tools
import cases_kafka_python_cli
import cases_kafkajs
import cases_kaskade
import cases_offsets
import cases_records
import cases_tools
from cases import Case
from cases_franz_go import FranzGoTests
from cases_groups_mixed import Together
from driver import Driver
from driver_aiokafka import AioKafka
from driver_confluent import Confluent
from driver_connect import KafkaConnect
from driver_frameworks import FastStream, FastStreamConfluent, QuixStreams
from driver_kafka_python import KafkaPython
from driver_kafka_python_cli import KafkaPythonCommands
from driver_kaskade import Kaskade
from driver_kcat import Kcat
from driver_shell import FranzGo, Java3, Java4, Tools3, Tools4
from group_aiokafka import AioKafkaGroups
from group_confluent import ConfluentGroups
from group_java import JavaGroups
from group_kafka_python import KafkaPythonGroups
from group_kafkajs import KafkaJs, KafkaJsAlone
from group_kcat import KcatGroups


class Section(NamedTuple):
    """Clients that are asked the same."""

    title: str
    drivers: tuple[type[Driver], ...]
    cases: list[Case]


CASES = [*cases_records.TABLE.cases, *cases_offsets.TABLE.cases, *cases_admin.TABLE.cases]
TOOL_CASES = cases_tools.TABLE.cases
CLUSTER_CASES = [*cases_cluster.TABLE.cases, *cases_cluster_leaders.TABLE.cases]
GROUP_CASES = [*cases_groups.TABLE.cases, *cases_groups_members.TABLE.cases, *cases_groups_admin.TABLE.cases]
JAVA_GROUP_CASES = [case for case in GROUP_CASES if case.id in ("member-leaves", "static-member", "cooperative-flow")]
MIXED_CASES = cases_groups_mixed.TABLE.cases
GROUP_TOOL_CASES = [*cases_groups_tools.TABLE.cases, *cases_groups_consumers.TABLE.cases]
KAFKAJS_CASES = cases_kafkajs.TABLE.cases
FRANZ_GO_CASES = cases_franz_go.TABLE.cases
FRAMEWORK_CASES = cases_frameworks.TABLE.cases
CONNECT_CASES = cases_connect.TABLE.cases
KASKADE_CASES = cases_kaskade.TABLE.cases
KAFKA_PYTHON_CLI_CASES = cases_kafka_python_cli.TABLE.cases
_MEMBERS = (KcatGroups, ConfluentGroups, KafkaPythonGroups, AioKafkaGroups, KafkaJs)
COLUMNS = (
    Section("Clients", (Kcat, Confluent, KafkaPython, AioKafka, FranzGo, Java3, Java4), CASES),
    Section("Members of consumer groups", _MEMBERS, GROUP_CASES),
    Section("Java members of consumer groups", (JavaGroups,), JAVA_GROUP_CASES),
    Section("What only kafkajs is asked", (KafkaJsAlone,), KAFKAJS_CASES),
    Section("franz-go's own tests of groups", (FranzGoTests,), FRANZ_GO_CASES),
    Section("Consumer groups of several clients", (Together,), MIXED_CASES),
    Section("Kafka's command line tools", (Tools3, Tools4), TOOL_CASES),
    Section("Kafka's command line tools and groups", (Tools3, Tools4), GROUP_TOOL_CASES),
    Section("Kafka's command line tools on three brokers", (Tools3, Tools4), CLUSTER_CASES),
    Section("Kafka Connect", (KafkaConnect,), CONNECT_CASES),
    Section("Frameworks for applications", (FastStream, FastStreamConfluent, QuixStreams), FRAMEWORK_CASES),
    Section("kafka-python's command line", (KafkaPythonCommands,), KAFKA_PYTHON_CLI_CASES),
    Section("kaskade, a user interface in the terminal", (Kaskade,), KASKADE_CASES),
)

"""The assignors: what they give by example, what always holds, and that Kafka's own give the same."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from peers import home
from peers.process import SMALL_JVM, java_command
from peers.shell import Shell
from tidelog.client.consumer_protocol import encode_subscription
from tidelog.groups.assignors import (
    ASSIGNORS,
    Assigned,
    Subscription,
    Subscriptions,
    assign_cooperative_sticky,
    assign_range,
    assign_round_robin,
    assign_sticky,
)
from tidelog.types import TopicPartition
from tidelog.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from tidelog.wire.stored import decode_versioned


def shares(assigned: Mapping[str, list[TopicPartition]]) -> dict[str, list[str]]:
    return {member: [str(partition) for partition in partitions] for member, partitions in assigned.items()}


def partitions(*names: str) -> list[TopicPartition]:
    return [TopicPartition(name[0], int(name[1:])) for name in names]


def both(*topics: str, members: str = "ab") -> dict[str, Subscription]:
    return {member: Subscription(topics) for member in members}


# Range and round robin


def test_range_gives_the_first_members_of_each_topic_one_more() -> None:
    assigned = assign_range(both("t", "u"), {"t": 3, "u": 3})
    assert shares(assigned) == {"a": ["t-0", "t-1", "u-0", "u-1"], "b": ["t-2", "u-2"]}


def test_round_robin_goes_on_over_the_end_of_a_topic() -> None:
    assigned = assign_round_robin(both("t", "u"), {"t": 3, "u": 3})
    assert shares(assigned) == {"a": ["t-0", "t-2", "u-1"], "b": ["t-1", "u-0", "u-2"]}


def test_round_robin_passes_over_members_that_do_not_read_the_topic() -> None:
    members = {"a": Subscription(["t"]), "b": Subscription(["t", "u"]), "c": Subscription(["t", "u"])}
    assigned = assign_round_robin(members, {"t": 1, "u": 3})
    assert shares(assigned) == {"a": ["t-0"], "b": ["u-0", "u-2"], "c": ["u-1"]}


@pytest.mark.parametrize("name", ASSIGNORS)
def test_more_members_than_partitions_and_topics_that_do_not_exist(name: str) -> None:
    assigned = ASSIGNORS[name].assign(both("t", "gone", "empty", members="abc"), {"t": 2, "empty": 0, "other": 9})
    assert shares(assigned) == {"a": ["t-0"], "b": ["t-1"], "c": []}
    assert ASSIGNORS[name].assign({}, {"t": 2}) == {}
    assert ASSIGNORS[name].assign(both("gone"), {}) == {"a": [], "b": []}


@pytest.mark.parametrize("name", ["range", "roundrobin"])
def test_static_members_come_first_and_by_their_instance_ids(name: str) -> None:
    members = {
        "a": Subscription(["t"]),
        "b": Subscription(["t"], instance_id="second"),
        "c": Subscription(["t"], instance_id="first"),
    }
    assert shares(ASSIGNORS[name].assign(members, {"t": 3})) == {"a": ["t-2"], "b": ["t-1"], "c": ["t-0"]}


# Sticky


def test_sticky_keeps_everything_and_shares_out_the_rest() -> None:
    members = {
        "a": Subscription(["t"], partitions("t0", "t3")),
        "b": Subscription(["t"], partitions("t1")),
        "c": Subscription(["t"]),
    }
    assert shares(assign_sticky(members, {"t": 5})) == {"a": ["t-0", "t-3"], "b": ["t-1", "t-4"], "c": ["t-2"]}


def test_sticky_takes_from_those_with_the_most_only() -> None:
    members = {
        "a": Subscription(["t"], partitions("t0", "t1", "t2")),
        "b": Subscription(["t"], partitions("t3", "t4")),
        "c": Subscription(["t"]),
    }
    assert shares(assign_sticky(members, {"t": 5})) == {"a": ["t-0", "t-1"], "b": ["t-3", "t-4"], "c": ["t-2"]}


def test_the_latest_generation_holds_what_two_members_claim() -> None:
    members = {
        "a": Subscription(["t"], partitions("t0", "t1"), generation=4),
        "b": Subscription(["t"], partitions("t0"), generation=5),
    }
    assert shares(assign_sticky(members, {"t": 2})) == {"a": ["t-1"], "b": ["t-0"]}


def test_sticky_reaches_balance_through_members_in_between() -> None:
    members = {
        "a": Subscription(["t"]),
        "b": Subscription(["t", "u"], partitions("t0")),
        "c": Subscription(["u"], partitions("u0", "u1")),
    }
    assert shares(assign_sticky(members, {"t": 1, "u": 2})) == {"a": ["t-0"], "b": ["u-1"], "c": ["u-0"]}


def test_cooperative_sticky_gives_what_is_held_elsewhere_in_a_second_round() -> None:
    members = {"a": Subscription(["t"], partitions("t0", "t1"), 1), "b": Subscription(["t"])}
    first = assign_cooperative_sticky(members, {"t": 3})
    assert shares(first) == {"a": ["t-0", "t-1"], "b": ["t-2"]}
    members["c"] = Subscription(["t"])
    members["b"] = Subscription(["t"], first["b"], 2)
    second = assign_cooperative_sticky(members, {"t": 3})
    assert shares(second) == {"a": ["t-0"], "b": ["t-2"], "c": []}
    members["a"] = Subscription(["t"], second["a"], 3)
    assert shares(assign_cooperative_sticky(members, {"t": 3})) == {"a": ["t-0"], "b": ["t-2"], "c": ["t-1"]}


# What always holds


def worlds(count: int, *, equal: bool, seed: int = 7) -> Iterator[tuple[dict[str, Subscription], dict[str, int]]]:
    """Groups of some history: each member claims a random part of what a random assignment gave it."""
    chance = random.Random(seed)
    for _ in range(count):
        counts = {topic: chance.randrange(0, 6) for topic in "tuv"[: chance.randrange(1, 4)]}
        names = [f"m{number}" for number in range(chance.randrange(1, 6))]
        chance.shuffle(names)
        owned: dict[str, list[TopicPartition]] = {name: [] for name in names}
        for topic, size in counts.items():
            for number in range(size + 1):  # one that is no longer there
                if chance.random() < 0.7:
                    owned[chance.choice(names)].append(TopicPartition(topic, number))
        members = {}
        for name in names:
            topics = list(counts) if equal else [topic for topic in counts if chance.random() < 0.7] or ["t"]
            instance_id = f"i{chance.randrange(100)}-{name}" if chance.random() < 0.3 else None
            held = [partition for partition in owned[name] if partition.topic in topics]
            members[name] = Subscription(topics, held, 5, instance_id)
        yield members, counts


def assert_valid(members: Subscriptions, counts: Mapping[str, int], assigned: Assigned) -> None:
    """Every partition that somebody reads has one reader, who wants it."""
    given = [partition for share in assigned.values() for partition in share]
    wanted = {topic for subscription in members.values() for topic in subscription.topics}
    assert sorted(given) == [TopicPartition(topic, n) for topic in sorted(wanted) for n in range(counts.get(topic, 0))]
    assert all(partition.topic in members[member].topics for member, share in assigned.items() for partition in share)
    assert all(share == sorted(share) for share in assigned.values())


def kept(members: Subscriptions, assigned: Mapping[str, list[TopicPartition]]) -> int:
    return sum(len(set(share) & set(members[member].owned)) for member, share in assigned.items())


@pytest.mark.parametrize("equal", [True, False])
def test_every_partition_has_one_reader(equal: bool) -> None:
    for members, counts in worlds(300, equal=equal):
        for name in ("range", "roundrobin", "sticky"):
            assert_valid(members, counts, ASSIGNORS[name].assign(members, counts))


def test_sticky_is_even_and_keeps_all_that_can_be_kept() -> None:
    for members, counts in worlds(300, equal=True):
        assigned = assign_sticky(members, counts)
        total = sum(counts.values())
        share, longer = divmod(total, len(members))
        assert sorted(map(len, assigned.values())) == [share] * (len(members) - longer) + [share + 1] * longer
        held = sorted((sum(p.partition < counts[p.topic] for p in m.owned) for m in members.values()), reverse=True)
        quotas = [share + 1] * longer + [share] * (len(members) - longer)
        assert kept(members, assigned) == sum(map(min, held, quotas))
        assert assign_sticky(dict(reversed(members.items())), counts) == assigned


def test_sticky_is_as_even_as_subscriptions_allow() -> None:
    for members, counts in worlds(150, equal=False):
        assigned = assign_sticky(members, counts)
        all_given = sorted(partition for share in assigned.values() for partition in share)
        if len(all_given) > 7:
            continue
        readers = [[m for m in members if partition.topic in members[m].topics] for partition in all_given]
        squares = min(sum(choice.count(m) ** 2 for m in members) for choice in product(*readers))
        assert sum(len(share) ** 2 for share in assigned.values()) == squares


def test_a_sticky_assignment_once_made_does_not_change() -> None:
    for members, counts in worlds(100, equal=False):
        assigned = assign_sticky(members, counts)
        again = {name: one._replace(owned=assigned[name], generation=6) for name, one in members.items()}
        assert assign_sticky(again, counts) == assigned
        assert assign_cooperative_sticky(again, counts) == assigned


def test_cooperative_sticky_ends_where_sticky_does_after_one_more_round() -> None:
    for members, counts in worlds(200, equal=True):
        first = assign_cooperative_sticky(members, counts)
        for member, share in first.items():
            others = [p for other in members if other != member for p in members[other].owned]
            assert not set(share) & set(others)
        again = {name: one._replace(owned=first[name], generation=6) for name, one in members.items()}
        second = assign_cooperative_sticky(again, counts)
        assert_valid(members, counts, second)
        assert kept(again, second) == sum(map(len, first.values()))


# Kafka's own

ORACLE = """
import com.fasterxml.jackson.databind.*;
import com.fasterxml.jackson.databind.node.*;
import java.io.*;
import java.nio.ByteBuffer;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.internals.AbstractPartitionAssignor;
import org.apache.kafka.common.TopicPartition;

public class AssignorOracle {
    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode asked = mapper.readTree(line);
            Map<String, Subscription> members = new HashMap<>();
            asked.get("members").fields().forEachRemaining(entry -> {
                JsonNode one = entry.getValue();
                List<String> topics = new ArrayList<>();
                one.get("topics").forEach(topic -> topics.add(topic.asText()));
                List<TopicPartition> owned = new ArrayList<>();
                one.get("owned").forEach(p -> owned.add(new TopicPartition(p.get(0).asText(), p.get(1).asInt())));
                int generation = one.get("generation").asInt();
                String had = one.path("user_data").asText("");
                ByteBuffer userData = had.isEmpty() ? null : ByteBuffer.wrap(HexFormat.of().parseHex(had));
                Subscription made = new Subscription(topics, userData, owned, generation, Optional.empty());
                if (!one.get("instance_id").isNull())
                    made.setGroupInstanceId(Optional.of(one.get("instance_id").asText()));
                members.put(entry.getKey(), made);
            });
            Map<String, Integer> counts = new HashMap<>();
            asked.get("counts").fields().forEachRemaining(e -> counts.put(e.getKey(), e.getValue().asInt()));
            AbstractPartitionAssignor assignor = (AbstractPartitionAssignor)
                Class.forName("org.apache.kafka.clients.consumer." + asked.get("assignor").asText())
                    .getDeclaredConstructor().newInstance();
            ObjectNode answer = mapper.createObjectNode();
            assignor.assign(counts, members).forEach((member, share) -> {
                ArrayNode list = answer.putArray(member);
                for (TopicPartition p : share) list.addArray().add(p.topic()).add(p.partition());
            });
            System.out.println(answer);
        }
    }
}
"""


@pytest.fixture(scope="module", params=home.VERSIONS)
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    source: Path = tmp_path_factory.mktemp("oracle") / "AssignorOracle.java"
    source.write_text(ORACLE)
    with Shell(java_command(request.param, str(source), (), SMALL_JVM)) as shell:
        yield shell


def by_kafka(oracle: Shell, assignor: str, members: Subscriptions, counts: Mapping[str, int]) -> Assigned:
    filled = {topic: count for topic, count in counts.items() if count}
    asked: dict[str, Any] = {name: subscription._asdict() for name, subscription in members.items()}
    answer = oracle.ask({"assignor": assignor, "members": asked, "counts": filled})
    return {name: sorted(TopicPartition(topic, number) for topic, number in answer[name]) for name in members}


@pytest.mark.jvm
@pytest.mark.parametrize("equal", [True, False])
def test_range_and_round_robin_are_kafkas(oracle: Shell, equal: bool) -> None:
    for members, counts in worlds(200, equal=equal, seed=11):
        assert assign_range(members, counts) == by_kafka(oracle, "RangeAssignor", members, counts)
        assert assign_round_robin(members, counts) == by_kafka(oracle, "RoundRobinAssignor", members, counts)


def existing(member: Subscription, counts: Mapping[str, int]) -> Subscription:
    """Without what is no longer there: Kafka's sticky assignors fail on that."""
    return member._replace(
        owned=[partition for partition in member.owned if partition.partition < counts[partition.topic]]
    )


@pytest.mark.jvm
def test_sticky_keeps_as_much_as_kafkas_and_begins_as_it_does(oracle: Shell) -> None:
    for history, counts in worlds(200, equal=True, seed=12):
        members = {name: existing(one, counts) for name, one in history.items()}
        ours = assign_cooperative_sticky(members, counts)
        theirs = by_kafka(oracle, "CooperativeStickyAssignor", members, counts)
        assert kept(members, ours) == kept(members, theirs)
        assert sum(map(len, ours.values())) == sum(map(len, theirs.values()))
        fresh = {name: one._replace(owned=[]) for name, one in members.items()}
        assert assign_cooperative_sticky(fresh, counts) == by_kafka(oracle, "CooperativeStickyAssignor", fresh, counts)


@pytest.mark.jvm
def test_kafkas_sticky_assignor_reads_what_our_members_had(oracle: Shell) -> None:
    for history, counts in worlds(100, equal=True, seed=13):
        members = {name: existing(one, counts) for name, one in history.items()}
        asked: dict[str, Any] = {}
        for name, one in members.items():
            empty_handed = one._replace(owned=())
            message, _ = decode_versioned(ConsumerProtocolSubscription, encode_subscription(empty_handed, one.owned))
            asked[name] = {**empty_handed._asdict(), "user_data": (message.user_data or b"").hex()}
        filled = {topic: count for topic, count in counts.items() if count}
        answer = oracle.ask({"assignor": "StickyAssignor", "members": asked, "counts": filled})
        theirs = {name: [TopicPartition(*partition) for partition in answer[name]] for name in members}
        ours = assign_sticky(members, counts)
        assert kept(members, theirs) == kept(members, ours)
        assert sorted(map(len, theirs.values())) == sorted(map(len, ours.values()))

"""What may be asked of topics, and the codes of what may not."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from tidelog.controller.image import Assignment, Broker, Image, Snapshot, TopicFacts
from tidelog.controller.topics import (
    Defaults,
    NewTopic,
    TopicError,
    TopicPlan,
    colliding,
    is_internal,
    new_topic_id,
    plan_creation,
    plan_more_partitions,
    validate_name,
)
from tidelog.errors import ErrorCode
from tidelog.wire import uuid_text

A, B = Assignment((1, 2)), Assignment((2, 1))


def image(**topics: TopicFacts) -> Image:
    brokers = {id: Broker(id, id, ()) for id in (1, 2, 3)}
    return Image(Snapshot(brokers, {"orders": TopicFacts(b"o" * 16, {0: A, 1: B})} | topics, {}, ()))


def nothing_wrong(_: Mapping[str, str]) -> None:
    pass


def create(new: NewTopic, given: Image | None = None) -> TopicPlan:
    return plan_creation(given or image(), new, Defaults(4, 2), random.Random(3), nothing_wrong)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "__consumer_offsets"])
def test_legal_names(name: str) -> None:
    validate_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\n", "a\u0663"])
def test_illegal_names(name: str) -> None:
    with pytest.raises(TopicError) as failure:
        validate_name(name)
    assert failure.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_dots_and_underscores_are_alike() -> None:
    assert colliding("a.b", ["x", "a_b"]) == "a_b"
    assert colliding("a_b", ["a.b"]) == "a.b"
    assert colliding("ab", ["a.b"]) is None


def test_topic_ids_are_random_and_not_reserved() -> None:
    ids = [new_topic_id(random.Random(seed)) for seed in range(200)]
    assert len(set(ids)) == 200
    assert not any(uuid_text(topic_id).startswith("-") for topic_id in ids)
    assert all(topic_id[6] >> 4 == 4 for topic_id in ids)


def test_a_topic_gets_the_defaults() -> None:
    plan = create(NewTopic("new", configs=[("retention.ms", "1")]))
    assert sorted(plan.assignments) == [0, 1, 2, 3]
    assert {len(assignment.replicas) for assignment in plan.assignments.values()} == {2}
    assert plan.configs == {"retention.ms": "1"}


def test_a_topic_gets_what_it_asks_for() -> None:
    assert len(create(NewTopic("new", 7, 3)).assignments) == 7
    assert create(NewTopic("new", assignments=[(1, [2]), (0, [3])])).assignments == {
        0: Assignment((3,)),
        1: Assignment((2,)),
    }
    assert is_internal("__consumer_offsets")
    assert create(NewTopic("__consumer_offsets")).name == "__consumer_offsets"


@pytest.mark.parametrize(
    ("new", "code"),
    [
        (NewTopic("orders"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (NewTopic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("__cluster_metadata"), ErrorCode.INVALID_REQUEST),
        (NewTopic("new", 0, 1), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("new", -2, 1), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("new", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("new", 1, 4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("new", 1, assignments=[(0, [1])]), ErrorCode.INVALID_REQUEST),
        (NewTopic("new", assignments=[(0, [1]), (0, [2])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("new", assignments=[(1, [1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("new", assignments=[(0, [])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("new", assignments=[(0, [1, 1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("new", assignments=[(0, [9])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("new", assignments=[(0, [1]), (1, [1, 2])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("new", configs=[("retention.ms", None)]), ErrorCode.INVALID_CONFIG),
    ],
)
def test_topics_that_cannot_be(new: NewTopic, code: ErrorCode) -> None:
    with pytest.raises(TopicError) as failure:
        create(new)
    assert failure.value.code is code
    assert str(failure.value)


def test_a_name_is_taken_until_the_topic_is_gone_and_must_not_collide() -> None:
    given = image(**{"a.b": TopicFacts(b"a" * 16, {0: A})})
    given.deleting["orders"] = set()
    with pytest.raises(TopicError, match="marked for deletion"):
        create(NewTopic("orders"), given)
    with pytest.raises(TopicError, match=r"collides with topic 'a\.b'"):
        create(NewTopic("a_b"), given)


def test_a_bad_config_is_refused() -> None:
    def refuse(configs: Mapping[str, str]) -> None:
        raise TopicError(ErrorCode.INVALID_CONFIG, f"what is {configs}")

    with pytest.raises(TopicError, match="what is"):
        plan_creation(image(), NewTopic("new", 1, 1), Defaults(1, 1), random.Random(1), refuse)


def test_partitions_are_added() -> None:
    assignments = plan_more_partitions(image(), "orders", 4, None)
    assert sorted(assignments) == [0, 1, 2, 3]
    assert (assignments[0], assignments[1]) == (A, B)
    assert plan_more_partitions(image(), "orders", 3, [[3, 1]])[2] == Assignment((3, 1))


@pytest.mark.parametrize(
    ("name", "total", "assignments", "code"),
    [
        ("nope", 3, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("going", 3, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("orders", 2, None, ErrorCode.INVALID_PARTITIONS),
        ("orders", 1, None, ErrorCode.INVALID_PARTITIONS),
        ("orders", 3, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 3, [[1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 3, [[1, 9]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("wide", 3, None, ErrorCode.INVALID_REPLICATION_FACTOR),
        ("moving", 3, None, ErrorCode.REASSIGNMENT_IN_PROGRESS),
    ],
)
def test_partitions_that_cannot_be_added(
    name: str, total: int, assignments: list[list[int]] | None, code: ErrorCode
) -> None:
    given = image(
        going=TopicFacts(b"g" * 16, {0: A}),
        wide=TopicFacts(b"w" * 16, {0: Assignment((1, 2, 3, 4))}),
        moving=TopicFacts(b"m" * 16, {0: Assignment((1, 2), adding=(2,))}),
    )
    given.deleting["going"] = set()
    with pytest.raises(TopicError) as failure:
        plan_more_partitions(given, name, total, assignments)
    assert failure.value.code is code

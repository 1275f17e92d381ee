"""What the log says of groups: why each rebalance began and what came of it, in two lines however many members."""

from __future__ import annotations

import logging

import pytest

from tests.kits.groupkit import REBALANCE_MS, SESSION_MS, Coordinator, group_config, subscription
from tidelog.broker.group.story import GroupStory


@pytest.fixture
def coordinator(caplog: pytest.LogCaptureFixture) -> Coordinator:
    caplog.set_level(logging.INFO)
    made = Coordinator(group_config(initial_rebalance_delay_ms=3_000))
    made.groups.usage.story = GroupStory()
    return made


def joined(coordinator: Coordinator, count: int) -> list[str]:
    """So many members, who have their assignment."""
    tickets = [coordinator.join(version=3) for _ in range(count)]
    coordinator.pass_ms(6_000)
    answers = [coordinator.answers[ticket] for ticket in tickets]
    for answer in answers:
        coordinator.sync(answer.member_id, answer.generation_id, {answers[0].leader: b"all"})
    return [answer.member_id for answer in answers]


def test_five_hundred_members_join_in_two_lines(coordinator: Coordinator, caplog: pytest.LogCaptureFixture) -> None:
    joined(coordinator, 500)
    began, complete = caplog.messages
    assert began == (
        "a rebalance of group orders-readers began, generation 0 with 1 member: member reader-0001 at 127.0.0.1 joined"
    )
    assert complete.startswith("the rebalance of group orders-readers is complete after ")
    assert "generation 1 has 500 members, protocol range, leader reader-0001; 500 joined and 0 went: " in complete
    assert complete.endswith("member reader-0003 at 127.0.0.1 joined and 497 more")


def test_members_that_leave_are_silent_or_come_back(coordinator: Coordinator, caplog: pytest.LogCaptureFixture) -> None:
    first, second = joined(coordinator, 2)
    caplog.clear()
    coordinator.leave(second)
    assert caplog.messages == [
        f"a rebalance of group orders-readers began, generation 1 with 1 member: member {second} at 127.0.0.1 left"
    ]
    coordinator.join(first)
    assert "generation 2 has 1 member" in caplog.messages[-1]
    assert f"0 joined and 1 went: member {second} at 127.0.0.1 left" in caplog.messages[-1]
    coordinator.sync(first, 2, {})
    caplog.clear()
    coordinator.pass_ms(SESSION_MS + REBALANCE_MS)
    began, empty = caplog.messages
    assert f"member {first} at 127.0.0.1 was silent for its session timeout of {SESSION_MS} ms" in began
    assert empty.startswith("group orders-readers is empty, generation 3, after 0.0 s; 0 joined and 1 went: ")


def test_a_static_member_that_comes_back_to_its_place_is_no_part_of_the_next_rebalance(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    ticket = coordinator.join(version=5, instance_id="one")
    coordinator.pass_ms(6_000)
    member = coordinator.answers[ticket].member_id
    coordinator.sync(member, 1, {member: b"all"})
    caplog.clear()
    for _ in range(5):
        coordinator.join(version=5, instance_id="one")
    assert len(caplog.messages) == 5
    assert all(
        "came back as a static member: group orders-readers does not rebalance" in one for one in caplog.messages
    )
    caplog.clear()
    coordinator.join(version=3)
    coordinator.pass_ms(REBALANCE_MS + SESSION_MS)
    complete = next(message for message in caplog.messages if "is complete" in message)
    assert "came back" not in complete
    assert "1 joined and 0 went" in complete or "1 joined and 1 went" in complete


def test_a_leader_with_other_metadata_is_the_reason(coordinator: Coordinator, caplog: pytest.LogCaptureFixture) -> None:
    (member,) = joined(coordinator, 1)
    caplog.clear()
    coordinator.join(member, protocols={"range": subscription("orders", "payments")})
    assert f"member {member} at 127.0.0.1 joined again, with other metadata or as the leader" in caplog.messages[0]
    assert len(caplog.messages) == 2


def test_offsets_that_expire_are_summed_up(coordinator: Coordinator, caplog: pytest.LogCaptureFixture) -> None:
    story = coordinator.groups.usage.story
    assert isinstance(story, GroupStory)
    for number in range(30):
        coordinator.commit({("orders", 0): 1, ("orders", 1): 2}, group_id=f"group-{number}")
    coordinator.pass_ms(8 * 24 * 3_600_000)
    coordinator.expire_offsets(most=100)
    story.tell_expired()
    assert caplog.messages == [
        "60 committed offsets of 30 groups expired (offsets.retention.minutes); "
        "30 groups were deleted since the last check, expired or not"
    ]
    story.tell_expired()
    assert len(caplog.messages) == 1, "there is nothing more to tell"


def test_nothing_is_kept_of_a_group_that_another_broker_coordinates(coordinator: Coordinator) -> None:
    story = coordinator.groups.usage.story
    assert isinstance(story, GroupStory)
    coordinator.join(version=3)
    assert story._under_way
    coordinator.fail_over()
    assert not story._under_way


def test_each_member_has_a_line_at_debug(coordinator: Coordinator, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tidelog.broker.group.story")
    joined(coordinator, 20)
    assert sum("generation 0: member" in message for message in caplog.messages) == 20


def test_a_log_that_does_not_want_it_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    made = Coordinator(group_config(initial_rebalance_delay_ms=3_000))
    story = made.groups.usage.story = GroupStory()
    joined(made, 3)
    assert caplog.messages == []
    assert not story._under_way

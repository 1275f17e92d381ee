"""The model of a story's steps, and what a step changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kits.storykit import M0, M1, M2, divergence, follower, group, loss, rebalance
from tidelog.lab.frames import (
    Changes,
    EpochEntry,
    Frame,
    MemberRow,
    Record,
    ReplicaRow,
    Role,
    changes,
    contested,
    differing,
    lost,
)


def step(index: int) -> Changes:
    strip = loss()
    return changes(strip.before(index), strip.frames[index])


def test_nothing_has_changed_in_the_first_frame() -> None:
    first = step(0)
    assert first.parts == frozenset()
    assert first.of("A").parts == first.of("B").parts == frozenset()


def test_a_frame_equal_to_its_predecessor_changes_nothing_but_what_is_said() -> None:
    frame = loss().frames[0]
    same = changes(frame, replace(frame, says="Nothing happens.", rule="S2.3"))
    assert same.parts == frozenset()
    assert same.of("A").parts == frozenset()
    assert same.of("A").added == same.of("A").gone == ()


def test_a_cut_tells_the_record_that_is_gone() -> None:
    cut = step(1)
    assert cut.parts == {"replicas"}
    assert cut.of("B").gone == (M1,)
    assert cut.of("B").parts == {"records", "log_end"}
    assert cut.of("A").parts == frozenset()


def test_an_election_changes_role_epoch_and_what_a_leader_knows() -> None:
    assert step(3).of("B").parts == {"role", "leader_epoch", "epochs", "isr", "remote_log_ends"}
    assert step(3).of("A").parts == frozenset()


def test_an_append_tells_the_record_that_is_new() -> None:
    strip = divergence()
    append = changes(strip.before(1), strip.frames[1]).of("B")
    assert append.added == (M2,)
    assert append.gone == ()
    assert append.parts == {"records", "log_end", "high_watermark"}


def test_a_record_replaced_within_a_step_is_both_gone_and_added() -> None:
    before = Frame("", "", (follower("A", M0, M1, high_watermark=1),))
    after = Frame("", "", (follower("A", M0, M2, high_watermark=1),))
    row = changes(before, after).of("A")
    assert (row.gone, row.added) == ((M1,), (M2,))


def test_a_record_below_the_new_log_start_is_not_gone() -> None:
    before = Frame("", "", (follower("A", M0, M1, high_watermark=2),))
    after = Frame("", "", (replace(before.replicas[0], records=(M1,), log_start=1),))
    row = changes(before, after).of("A")
    assert row.gone == ()
    assert row.parts == {"records", "log_start"}


def test_a_replica_that_was_not_there_is_new_with_all_its_records() -> None:
    before = Frame("", "", (follower("A", M0, high_watermark=1),))
    after = replace(before, replicas=(*before.replicas, follower("B", M0, high_watermark=1)))
    assert changes(before, after).of("B").added == (M0,)
    assert changes(before, after).of("B").parts == {"role"}


def test_what_clients_and_controller_know_changes_too() -> None:
    frame = loss().frames[0]
    after = replace(frame, controller="B", acknowledged=(M0,), waiting=("m2",))
    assert changes(frame, after).parts == {"controller", "acknowledged", "waiting"}


def test_logs_differ_where_label_or_epoch_does() -> None:
    assert [differing(frame) for frame in loss().frames] == [frozenset()] * 5
    assert [differing(frame) for frame in divergence().frames] == [frozenset(), {1}, {1}]
    rewritten = follower("B", M0, replace(M1, epoch=1), high_watermark=1)
    assert differing(Frame("", "", (follower("A", M0, M1, high_watermark=1), rewritten))) == {1}


def test_an_acknowledged_record_is_lost_when_the_last_replica_has_cut_it() -> None:
    assert [lost(frame) for frame in loss().frames] == [(), (), (), (), (M1,)]


def test_retention_loses_nothing() -> None:
    row = replace(follower("A", M0, M1, high_watermark=2), records=(M1,), log_start=1)
    assert lost(Frame("", "", (row,), acknowledged=(M0, M1))) == ()


def test_an_epoch_entry_is_written_as_in_the_documents() -> None:
    assert str(EpochEntry(1, 120)) == "<1,120>"


@pytest.mark.parametrize(
    ("records", "log_start", "log_end"),
    [((M0, M1), 0, 1), ((M1, M0), 0, 2), ((M0,), 1, 2), ((Record(3, "m3"),), 0, 3), ((), 2, 1)],
)
def test_a_log_out_of_order_is_refused(records: tuple[Record, ...], log_start: int, log_end: int) -> None:
    with pytest.raises(ValueError, match="A: offsets must rise"):
        ReplicaRow("A", Role.LEADER, records, log_start=log_start, log_end=log_end)


def test_two_replicas_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two rows of one name: A A"):
        Frame("", "", (follower("A", high_watermark=0), follower("A", high_watermark=0)))


# Groups


def test_a_partition_read_by_two_is_contested_and_one_that_a_dead_member_has_is_not() -> None:
    reader, other = MemberRow("c1", Role.LEADER, 1, (0, 1)), MemberRow("c2", Role.MEMBER, 1, (1, 2))
    assert contested(group("Stable", 1, reader, other)) == {1}
    dead = MemberRow("c2", Role.DEAD, 1, assigned=(1, 2))
    assert contested(group("Stable", 1, reader, dead)) == frozenset()


def test_the_shares_of_a_member_are_those_it_reads_and_those_it_has_not_heard_of() -> None:
    assert MemberRow("c1", Role.MEMBER, 1, held=(2, 0), assigned=(1,)).shares == (0, 1, 2)


def test_a_step_of_a_group_changes_the_group() -> None:
    strip = rebalance()
    assert changes(strip.before(1), strip.frames[1]).parts == {"group"}


def test_two_members_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two rows of one name: c1 c1"):
        group("Stable", 1, MemberRow("c1", Role.LEADER), MemberRow("c1", Role.MEMBER))


def test_a_partition_that_the_topic_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="t has 3 partitions"):
        group("Stable", 1, MemberRow("c1", Role.LEADER, 1, assigned=(3,)))

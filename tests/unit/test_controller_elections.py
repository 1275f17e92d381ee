"""Who leads (S6), as a table."""

from __future__ import annotations

import pytest

from tidelog.controller.elections import Candidates, Election, elect, first_leader
from tidelog.controller.image import PartitionState
from tidelog.controller.log_ends import LogEnd

REPLICAS = (1, 2, 3)
NOBODY: set[int] = set()


def _state(leader: int, isr: tuple[int, ...], elr: tuple[int, ...] = ()) -> PartitionState:
    return PartitionState(leader, 4, isr, 1, 7, {}, elr=elr)


@pytest.mark.parametrize(
    ("leader", "isr", "online", "lost", "unclean", "elected"),
    [
        # nothing happened
        (1, (1, 2, 3), {1, 2, 3}, NOBODY, False, Election(1, (1, 2, 3))),
        (2, (2, 3), {1, 2, 3}, NOBODY, False, Election(2, (2, 3))),
        # the leader died: the first living ISR member in the order of the replicas, not of the ISR (S6.1)
        (1, (3, 1, 2), {2, 3}, NOBODY, False, Election(2, (3, 2))),
        (1, (1, 3), {2, 3}, NOBODY, False, Election(3, (3,))),
        # a follower died
        (1, (1, 2, 3), {1, 3}, NOBODY, False, Election(1, (1, 3))),
        # no member of the ISR lives: it stays as it was (S6.2)
        (1, (1,), {2, 3}, NOBODY, False, Election(-1, (1,))),
        (1, (1, 2), {3}, NOBODY, False, Election(-1, (1, 2))),
        (-1, (1, 2), {3}, NOBODY, False, Election(-1, (1, 2))),
        # an intact one is back
        (-1, (1, 2), {2}, NOBODY, False, Election(2, (2,))),
        # unclean: the living replicas have to tell where their logs end
        (1, (1,), {2, 3}, NOBODY, True, Election(-1, (1,), unheard=(2, 3))),
        (-1, (1,), NOBODY, NOBODY, True, Election(-1, (1,))),
        # unclean does not matter while an intact member lives
        (1, (1, 3), {2, 3}, NOBODY, True, Election(3, (3,))),
        # edge case 9: a leader that may have lost records hands over to a member that has not
        (1, (1, 2), {1, 2}, {1}, False, Election(2, (2,))),
        # edge case 31: it waits for a member that is away, and stays in the ISR: that one may have lost records too
        (-1, (1, 2), {1}, {1}, False, Election(-1, (1, 2), unheard=(1,))),
        (-1, (1, 2, 3), {1, 3}, {1, 3}, False, Election(-1, (1, 2, 3), unheard=(1, 3))),
        # all members are back, and all may have lost records: every replica has to tell where its log ends
        (1, (2, 1), {1, 2, 3}, {1, 2}, False, Election(-1, (2, 1), unheard=(2, 1, 3))),
        (-1, (2,), {1, 2}, {2}, False, Election(-1, (2,), unheard=(2, 1))),
        (-1, (1, 2), {2, 3}, {2}, True, Election(-1, (1, 2), unheard=(2, 3))),
    ],
)
def test_elect(
    leader: int, isr: tuple[int, ...], online: set[int], lost: set[int], unclean: bool, elected: Election
) -> None:
    result = elect(_state(leader, isr), Candidates(REPLICAS, online.__contains__, lost.__contains__), unclean)
    assert result == elected
    # Asked again when it is written down: no member of an ISR with a leader has lost anything since, and it stays.
    still_lost = lost if result.leader < 0 else NOBODY
    candidates = Candidates(REPLICAS, online.__contains__, still_lost.__contains__)
    again = elect(_state(result.leader, result.isr), candidates, unclean)
    assert (again.leader, again.isr) == (result.leader, result.isr)


@pytest.mark.parametrize(
    ("ends", "leader"),
    [
        ({1: LogEnd(3, 10), 2: LogEnd(3, 12), 3: LogEnd(3, 11)}, 2),
        # the later epoch counts more than the later end
        ({1: LogEnd(3, 10), 2: LogEnd(2, 90), 3: LogEnd(4, 7)}, 3),
        # of equals the first in the order of the replicas
        ({1: LogEnd(2, 9), 2: LogEnd(3, 10), 3: LogEnd(3, 10)}, 2),
        # an empty log is the least, and may still be all there is
        ({1: LogEnd(-1, 0), 2: LogEnd(-1, 0), 3: LogEnd(0, 0)}, 3),
    ],
)
def test_edge_31_if_all_members_may_have_lost_records_the_fullest_leads(ends: dict[int, LogEnd], leader: int) -> None:
    candidates = Candidates(REPLICAS, lambda broker: True, lambda broker: True, ends)
    assert elect(_state(-1, (3, 1, 2)), candidates, unclean=False) == Election(leader, (leader,), is_unclean=True)


def test_edge_31_the_fullest_does_not_lead_while_a_member_is_away_or_has_not_told() -> None:
    ends = {1: LogEnd(3, 10), 2: LogEnd(3, 12)}
    away = Candidates(REPLICAS, {1, 2}.__contains__, lambda broker: True, ends)
    assert elect(_state(-1, REPLICAS), away, unclean=False) == Election(-1, REPLICAS)
    silent = Candidates(REPLICAS, lambda broker: True, lambda broker: True, ends)
    assert elect(_state(-1, REPLICAS), silent, unclean=False) == Election(-1, REPLICAS, unheard=(3,))


@pytest.mark.parametrize(
    ("online", "ends", "elected"),
    [
        # the only member has no record: the others are asked
        ({1, 2, 3}, {3: LogEnd(-1, 0)}, Election(-1, (3,), unheard=(1, 2))),
        ({1, 2, 3}, {3: LogEnd(-1, 0), 2: LogEnd(3, 5)}, Election(-1, (3,), unheard=(1,))),
        ({1, 2, 3}, {1: LogEnd(3, 6), 2: LogEnd(3, 5), 3: LogEnd(-1, 0)}, Election(1, (1,), is_unclean=True)),
        # and waited for
        ({2, 3}, {3: LogEnd(-1, 0), 2: LogEnd(3, 5)}, Election(-1, (3,))),
        # all logs are empty: a member leads
        ({1, 2, 3}, dict.fromkeys(REPLICAS, LogEnd(-1, 0)), Election(3, (3,), is_unclean=True)),
        # it has something: those that live are asked, and not waited for
        ({2, 3}, {3: LogEnd(2, 1)}, Election(-1, (3,), unheard=(2,))),
        ({2, 3}, {3: LogEnd(2, 1), 2: LogEnd(2, 1)}, Election(3, (3,), is_unclean=True)),
        # on a new disk it has copied only a little of what another one has
        ({2, 3}, {3: LogEnd(2, 1), 2: LogEnd(2, 9)}, Election(2, (2,), is_unclean=True)),
        # the other one has led a later term, in which it may have lacked what was committed afterwards
        ({2, 3}, {3: LogEnd(2, 8), 2: LogEnd(3, 7)}, Election(3, (3,), is_unclean=True)),
        ({2, 3}, {3: LogEnd(2, 8), 2: LogEnd(3, 9)}, Election(3, (3,), is_unclean=True)),
        ({2, 3}, {3: LogEnd(2, 8), 2: LogEnd(1, 9)}, Election(3, (3,), is_unclean=True)),
    ],
)
def test_edge_31_an_empty_log_does_not_lead_before_the_other_replicas_have_told(
    online: set[int], ends: dict[int, LogEnd], elected: Election
) -> None:
    candidates = Candidates(REPLICAS, online.__contains__, lambda broker: True, ends)
    assert elect(_state(-1, (3,)), candidates, unclean=False) == elected


@pytest.mark.parametrize(
    ("ends", "cannot_tell", "elected"),
    [
        ({3: LogEnd(2, 1), 1: LogEnd(2, 0)}, {2}, Election(3, (3,), is_unclean=True)),
        ({3: LogEnd(2, 1), 1: LogEnd(2, 5)}, {2}, Election(1, (1,), is_unclean=True)),
        # all members are empty, and one that cannot tell is not preferred to them
        ({3: LogEnd(-1, 0), 1: LogEnd(-1, 0)}, {2}, Election(3, (3,), is_unclean=True)),
        # a member is waited for in any case
        ({1: LogEnd(2, 9), 2: LogEnd(2, 9)}, {3}, Election(-1, (3,), unheard=(3,))),
        # and so is one that may tell yet
        ({3: LogEnd(2, 1)}, {2}, Election(-1, (3,), unheard=(1, 2))),
    ],
)
def test_edge_31_a_replica_outside_of_isr_and_elr_that_cannot_tell_counts_as_an_empty_one(
    ends: dict[int, LogEnd], cannot_tell: set[int], elected: Election
) -> None:
    candidates = Candidates(REPLICAS, lambda _: True, {3}.__contains__, ends, cannot_tell=cannot_tell.__contains__)
    assert elect(_state(-1, (3,)), candidates, unclean=False) == elected


def test_if_no_member_is_recorded_the_fullest_of_all_replicas_leads() -> None:
    """A state without any member is none of ours, but a controller that fails on it would read it again and again."""
    ends = {1: LogEnd(3, 6), 2: LogEnd(3, 7), 3: LogEnd(-1, 0)}
    candidates = Candidates(REPLICAS, lambda broker: True, lambda broker: True, ends)
    assert elect(_state(-1, ()), candidates, unclean=False) == Election(2, (2,), is_unclean=True)


@pytest.mark.parametrize(
    ("ends", "leader"),
    [
        # nothing is known: a member
        ({}, 2),
        # it has told that its log is empty: one that may have something
        ({2: LogEnd(-1, 0)}, 3),
        ({2: LogEnd(-1, 0), 3: LogEnd(-1, 0)}, 2),
        ({2: LogEnd(3, 4)}, 2),
        ({2: LogEnd(3, 4), 3: LogEnd(3, 5)}, 3),
    ],
)
def test_an_operator_gets_the_best_of_what_is_known_at_once(ends: dict[int, LogEnd], leader: int) -> None:
    candidates = Candidates((1, 3, 2), {2, 3}.__contains__, {2}.__contains__, ends)
    elected = elect(_state(-1, (1,), elr=(2,)), candidates, unclean=True, at_once=True)
    assert elected == Election(leader, (leader,), is_unclean=True)


def test_an_unclean_election_takes_the_fullest_of_those_that_have_told() -> None:
    candidates = Candidates(REPLICAS, {1, 2}.__contains__, lambda broker: True, {1: LogEnd(3, 1), 2: LogEnd(3, 2)})
    assert elect(_state(-1, REPLICAS), candidates, unclean=True) == Election(2, (2,), is_unclean=True)


@pytest.mark.parametrize(
    ("online", "lost", "elected"),
    [
        # the ISR comes first
        ({1, 2, 3}, NOBODY, Election(3, (3,))),
        # an intact one of the ELR leads while the ISR is away, or has lost records
        ({1, 2}, NOBODY, Election(1, (1, 2))),
        ({2, 3}, {3}, Election(2, (2,))),
        ({1, 2, 3}, {1, 3}, Election(2, (2,))),
        # all of both are waited for
        ({2, 3}, {2, 3}, Election(-1, (3,), unheard=(3, 2))),
        ({1, 2, 3}, {1, 2, 3}, Election(-1, (3,), unheard=(3, 1, 2))),
    ],
)
def test_an_eligible_replica_leads_if_the_isr_cannot(online: set[int], lost: set[int], elected: Election) -> None:
    candidates = Candidates(REPLICAS, online.__contains__, lost.__contains__)
    assert elect(_state(3, (3,), elr=(1, 2)), candidates, unclean=False) == elected


@pytest.mark.parametrize(
    ("leader", "isr", "online", "unsure", "unclean", "elected"),
    [
        # the ISR does not shrink to members that may have no log
        (3, (1, 2, 3), {1, 2}, {1, 2}, False, Election(-1, (1, 2, 3))),
        (-1, (1, 2, 3), {1, 2}, {1, 2}, False, Election(-1, (1, 2, 3))),
        (1, (1, 2, 3), {1, 2}, {1, 2}, False, Election(-1, (1, 2, 3))),
        # one that surely has it leads, and the others stay until they have answered
        (3, (1, 2, 3), {1, 2}, {1}, False, Election(2, (1, 2))),
        (1, (1, 2, 3), {1, 2}, {1}, False, Election(1, (1, 2))),
        # a leader stays while nothing changes
        (1, (1, 2), {1, 2}, {1, 2}, False, Election(1, (1, 2))),
        # who may lose records need not wait
        (3, (1, 2, 3), {1, 2}, {1, 2}, True, Election(1, (1, 2))),
    ],
)
def test_edge_31_a_member_that_may_be_in_a_failed_directory_has_to_answer_first(
    leader: int, isr: tuple[int, ...], online: set[int], unsure: set[int], unclean: bool, elected: Election
) -> None:
    candidates = Candidates(
        REPLICAS, online.__contains__, NOBODY.__contains__, is_surely_there=lambda member: member not in unsure
    )
    assert elect(_state(leader, isr), candidates, unclean) == elected
    assert elect(_state(elected.leader, elected.isr), candidates, unclean) == elected


def test_a_new_partition_starts_with_all_that_can_be_reached() -> None:
    assert first_leader((3, 1, 2), {1, 2}.__contains__) == Election(1, (1, 2))
    assert first_leader((3, 1, 2), NOBODY.__contains__) is None

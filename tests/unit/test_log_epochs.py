"""The leader epoch cache, rule by rule (S4.1, S4.2, S4.4)."""

from __future__ import annotations

import pytest

from tidelog.log.epochs import EpochEntry, LeaderEpochCache, TruncationPoint

Entries = list[tuple[int, int]]


def cache_of(entries: Entries) -> LeaderEpochCache:
    return LeaderEpochCache(EpochEntry(*entry) for entry in entries)


# S4.1: <0,0>,<1,120> says epoch 0 wrote 0..119


@pytest.mark.parametrize(
    ("offset", "epoch"), [(0, 0), (119, 0), (120, 1), (5000, 1)], ids=["first", "last of 0", "first of 1", "not yet"]
)
def test_s4_1_an_epoch_reaches_to_the_start_of_the_next(offset: int, epoch: int) -> None:
    assert cache_of([(0, 0), (1, 120)]).epoch_for_offset(offset) == epoch


def test_s4_1_an_offset_before_the_first_start_has_no_known_epoch() -> None:
    assert cache_of([(3, 10)]).epoch_for_offset(9) is None


def test_s4_1_numbers_may_be_skipped() -> None:
    cache = cache_of([(2, 0), (5, 10), (9, 20)])
    assert [cache.epoch_for_offset(offset) for offset in (9, 10, 19, 20)] == [2, 5, 5, 9]


# S4.2: a new entry replaces those that start at or after its own

ASSIGN_ROWS: dict[str, tuple[Entries, tuple[int, int], Entries, bool]] = {
    "the first": ([], (0, 0), [(0, 0)], True),
    "the first may have any number": ([], (7, 30), [(7, 30)], True),
    "a later term": ([(0, 0)], (1, 120), [(0, 0), (1, 120)], True),
    "the current term goes on": ([(0, 0), (1, 120)], (1, 150), [(0, 0), (1, 120)], False),
    "the same once more": ([(0, 0), (1, 120)], (1, 120), [(0, 0), (1, 120)], False),
    "the current term starts earlier": ([(0, 0), (2, 120)], (2, 100), [(0, 0), (2, 100)], True),
    "an empty term is replaced": ([(0, 0), (1, 120)], (2, 120), [(0, 0), (2, 120)], True),
    "terms that start after it go": ([(0, 0), (1, 50), (2, 90)], (3, 60), [(0, 0), (1, 50), (3, 60)], True),
    "all of them if it starts first": ([(1, 10), (2, 20)], (3, 0), [(3, 0)], True),
    "a lower number removes higher ones": ([(0, 0), (5, 50)], (3, 80), [(0, 0), (3, 80)], True),
    "no epoch teaches nothing": ([(0, 0)], (-1, 10), [(0, 0)], False),
}


@pytest.mark.parametrize(("before", "new", "after", "changed"), ASSIGN_ROWS.values(), ids=ASSIGN_ROWS.keys())
def test_s4_2_assign(before: Entries, new: tuple[int, int], after: Entries, changed: bool) -> None:
    cache = cache_of(before)
    assert cache.assign(*new) is changed
    assert cache.entries == after
    assert cache.latest_epoch == after[-1][0]


def test_a_term_cannot_start_before_the_log() -> None:
    with pytest.raises(ValueError, match="epoch 1 cannot start at offset -5"):
        LeaderEpochCache().assign(1, -5)


# S4.2: truncation drops entries that start at or after the cut

FROM_END_ROWS: dict[str, tuple[int, Entries, bool]] = {
    "past all": (200, [(0, 0), (1, 120), (4, 150)], False),
    "inside the last": (151, [(0, 0), (1, 120), (4, 150)], False),
    "at a start": (150, [(0, 0), (1, 120)], True),
    "inside an earlier": (60, [(0, 0)], True),
    "at the beginning": (0, [], True),
}


@pytest.mark.parametrize(("offset", "after", "changed"), FROM_END_ROWS.values(), ids=FROM_END_ROWS.keys())
def test_s4_2_truncate_from_end(offset: int, after: Entries, changed: bool) -> None:
    cache = cache_of([(0, 0), (1, 120), (4, 150)])
    assert cache.truncate_from_end(offset) is changed
    assert cache.entries == after
    assert cache.latest_epoch == (after[-1][0] if after else -1)


FROM_START_ROWS: dict[str, tuple[int, Entries, bool]] = {
    "at the first start": (10, [(0, 10), (1, 120), (4, 150)], False),
    "before it": (5, [(0, 10), (1, 120), (4, 150)], False),
    "inside the first": (11, [(0, 11), (1, 120), (4, 150)], True),
    "at a later start": (120, [(1, 120), (4, 150)], True),
    "inside a later one": (130, [(1, 130), (4, 150)], True),
    "past all: the last term is still the current one": (500, [(4, 500)], True),
}


@pytest.mark.parametrize(("offset", "after", "changed"), FROM_START_ROWS.values(), ids=FROM_START_ROWS.keys())
def test_truncate_from_start_keeps_the_covering_term(offset: int, after: Entries, changed: bool) -> None:
    cache = cache_of([(0, 10), (1, 120), (4, 150)])
    assert cache.truncate_from_start(offset) is changed
    assert cache.entries == after
    assert cache.latest_epoch == 4


def test_clear_says_whether_there_was_anything() -> None:
    cache = cache_of([(0, 0), (1, 5)])
    assert cache.clear() is True
    assert (cache.entries, cache.latest_epoch, len(cache)) == ([], -1, 0)
    assert cache.clear() is False


# S4.4: what the leader answers

LEO = 200
END_ROWS: dict[str, tuple[Entries, int, tuple[int, int]]] = {
    "the current epoch ends at the log end": ([(0, 0), (1, 120)], 1, (1, LEO)),
    "an earlier one ends where the next starts": ([(0, 0), (1, 120)], 0, (0, 120)),
    "an unknown one: the largest below it": ([(0, 0), (2, 50), (6, 120)], 4, (2, 120)),
    "epoch + 1 need not exist": ([(2, 50), (6, 120)], 2, (2, 120)),
    "older than all known: itself and the first start": ([(5, 10), (6, 20)], 4, (4, 10)),
    "newer than all known": ([(0, 0), (1, 120)], 2, (-1, -1)),
    "no epoch asked": ([(0, 0)], -1, (-1, -1)),
    "nothing known": ([], 0, (-1, -1)),
    "nothing known, no epoch asked": ([], -1, (-1, -1)),
}


@pytest.mark.parametrize(("entries", "asked", "answer"), END_ROWS.values(), ids=END_ROWS.keys())
def test_s4_4_the_leader_answers_where_an_epoch_ends(entries: Entries, asked: int, answer: tuple[int, int]) -> None:
    assert cache_of(entries).end_offset_for(asked, LEO) == answer


# S4.4: what the follower does with the answer

CUT_ROWS: dict[str, tuple[Entries, int, tuple[int, int], TruncationPoint]] = {
    "the leader's end is first": ([(0, 0), (1, 120)], 200, (1, 150), TruncationPoint(150, True)),
    "my own end of that epoch is first": ([(0, 0), (1, 120)], 200, (0, 130), TruncationPoint(120, True)),
    "my log end is first": ([(0, 0)], 90, (0, 130), TruncationPoint(90, True)),
    "an epoch I do not know: cut to the end of my next lower one, ask again": (
        [(0, 0), (3, 60)],
        100,
        (2, 80),
        TruncationPoint(60, False),
    ),
    "and not past the leader's end either": ([(0, 0), (3, 95)], 100, (2, 80), TruncationPoint(80, False)),
    "an epoch above all of mine: ask again": ([(0, 0)], 90, (2, 80), TruncationPoint(80, False)),
    "an epoch below all of mine: nothing is shared": ([(4, 30)], 90, (2, 80), TruncationPoint(30, True)),
    "no epochs at all": ([], 90, (2, 80), TruncationPoint(80, True)),
}


@pytest.mark.parametrize(("mine", "my_end", "answer", "cut"), CUT_ROWS.values(), ids=CUT_ROWS.keys())
def test_s4_4_the_follower_cuts(mine: Entries, my_end: int, answer: tuple[int, int], cut: TruncationPoint) -> None:
    assert cache_of(mine).truncation_point(*answer, log_end_offset=my_end) == cut


def test_an_answer_that_knows_nothing_gives_no_cut() -> None:
    with pytest.raises(ValueError, match="there is no point to find"):
        cache_of([(0, 0)]).truncation_point(-1, -1, 10)


# S5: the failure stories, as far as the epochs tell them


def test_s5_a_the_follower_hears_two_and_cuts_nothing() -> None:
    leader, follower = cache_of([(0, 0)]), cache_of([(0, 0)])
    answer = leader.end_offset_for(follower.latest_epoch, log_end_offset=2)
    assert follower.truncation_point(*answer, log_end_offset=2) == (2, True)


def test_s5_b_the_old_leader_is_told_zero_ends_at_one() -> None:
    new_leader, old_leader = cache_of([(0, 0), (1, 1)]), cache_of([(0, 0)])
    answer = new_leader.end_offset_for(old_leader.latest_epoch, log_end_offset=2)
    assert answer == (0, 1)
    assert old_leader.truncation_point(*answer, log_end_offset=2) == (1, True)


def test_edge_10_a_cut_at_or_past_the_log_end_forgets_an_empty_term() -> None:
    """Two elections without a write: both logs end at 3, but the follower remembers a term of its own there.

    The leader answers from its epoch 1, so the follower is to be cut at the end it already has. Were the entry of
    epoch 2 left, the next round would ask about epoch 2 again, and hear the same, for ever.
    """
    log_end_offset = 3
    leader, follower = cache_of([(0, 0), (1, 2), (3, 3)]), cache_of([(0, 0), (1, 2), (2, 3)])
    answer = leader.end_offset_for(follower.latest_epoch, log_end_offset)
    assert answer == (1, 3)
    cut = follower.truncation_point(*answer, log_end_offset)
    assert cut == (log_end_offset, True)

    assert follower.truncate_from_end(cut.offset) is True
    assert follower.latest_epoch == 1
    assert leader.end_offset_for(follower.latest_epoch, log_end_offset) == (1, log_end_offset)


def test_edge_10_also_when_the_cut_is_past_the_log_end() -> None:
    follower = cache_of([(0, 0), (5, 10)])
    assert follower.truncate_from_end(9) is True  # the log itself ends at 8
    assert follower.entries == [(0, 0)]

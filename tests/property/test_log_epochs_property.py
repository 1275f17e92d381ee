"""The leader epoch cache against a list that does it the slow way, and against logs that really diverge."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.log.epochs import EpochEntry, LeaderEpochCache

EPOCHS = st.integers(0, 12)
OFFSETS = st.integers(0, 30)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("assign"), EPOCHS, OFFSETS),
        st.tuples(st.just("from_end"), OFFSETS),
        st.tuples(st.just("from_start"), OFFSETS),
    ),
    max_size=25,
)


class NaiveEpochs:
    """The rules of S4.2 and S4.4 as they read."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []

    def call(self, name: str, *numbers: int) -> None:
        if name == "assign":
            epoch, start = numbers
            if not (self.entries and self.entries[-1][0] == epoch and self.entries[-1][1] <= start):
                self.entries = [(e, s) for e, s in self.entries if e < epoch and s < start] + [(epoch, start)]
        elif name == "from_end":
            self.entries = [(e, s) for e, s in self.entries if s < numbers[0]]
        else:
            covering = [(e, numbers[0]) for e, s in self.entries if s <= numbers[0]][-1:]
            self.entries = covering + [(e, s) for e, s in self.entries if s > numbers[0]]

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        known = [e for e, _ in self.entries]
        if not known or epoch > known[-1] or epoch == -1:
            return -1, -1
        found = max((e for e in known if e <= epoch), default=epoch)
        return found, min((s for e, s in self.entries if e > epoch), default=log_end_offset)


def call(cache: LeaderEpochCache, name: str, *numbers: int) -> bool:
    if name == "assign":
        return cache.assign(*numbers)
    return cache.truncate_from_end(*numbers) if name == "from_end" else cache.truncate_from_start(*numbers)


@given(CALLS)
def test_the_cache_is_what_the_rules_say(calls: list[tuple[str, int]]) -> None:
    cache, naive = LeaderEpochCache(), NaiveEpochs()
    for step in calls:
        before = cache.entries
        changed = call(cache, *step)
        naive.call(*step)
        assert cache.entries == naive.entries
        assert changed is (cache.entries != before)
        assert cache.latest_epoch == (naive.entries[-1][0] if naive.entries else -1)
        for earlier, later in zip(cache.entries, cache.entries[1:], strict=False):
            assert earlier.epoch < later.epoch
            assert earlier.start_offset < later.start_offset
    for epoch in range(-1, 14):
        assert cache.end_offset_for(epoch, 40) == naive.end_offset_for(epoch, 40)
    for offset in range(35):
        expected = [e for e, s in naive.entries if s <= offset]
        assert cache.epoch_for_offset(offset) == (expected[-1] if expected else None)


class Replica:
    """A log of which only the epoch of each record is kept: two logs share a record if they agree up to it."""

    def __init__(self) -> None:
        self.log: list[int] = []
        self.epochs = LeaderEpochCache()

    def write(self, epoch: int) -> None:
        self.epochs.assign(epoch, len(self.log))
        self.log.append(epoch)

    def reconcile(self, leader: Replica) -> int:
        """S4.4 until it is final; how many rounds it took."""
        rounds = 0
        final = not self.log and not len(self.epochs)
        while not final:
            rounds += 1
            if not len(self.epochs):
                break
            answer = leader.epochs.end_offset_for(self.epochs.latest_epoch, len(leader.log))
            offset, final = self.epochs.truncation_point(*answer, len(self.log))
            del self.log[offset:]
            self.epochs.truncate_from_end(offset)
            assert rounds < 100, "the follower asks for ever"
        return rounds


def shared_prefix(one: list[int], other: list[int]) -> int:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length


TERMS = st.lists(
    st.tuples(
        st.integers(0, 2),  # who leads
        st.integers(1, 2),  # how many numbers the epoch grows by
        st.integers(0, 3),  # how many records it takes
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=3),  # who follows, copying how many
    ),
    max_size=12,
)


@settings(max_examples=300)
@given(TERMS)
def test_after_any_elections_a_follower_is_cut_to_what_it_shares_with_the_leader(
    terms: list[tuple[int, int, int, list[tuple[int, int]]]],
) -> None:
    replicas = [Replica(), Replica(), Replica()]
    epoch = 0
    for leading, skipped, records, followers in terms:
        epoch += skipped
        leader = replicas[leading]
        leader.epochs.assign(epoch, len(leader.log))
        for _ in range(records):
            leader.write(epoch)
        for following, copied in followers:
            follower = replicas[following]
            if follower is leader:
                continue
            shared = shared_prefix(follower.log, leader.log)
            follower.reconcile(leader)
            assert len(follower.log) == shared
            for record in leader.log[shared : shared + copied]:
                follower.write(record)


@given(st.lists(EPOCHS, max_size=20).map(sorted), EPOCHS)
def test_an_epoch_ends_after_the_last_record_that_is_not_newer(log: list[int], epoch: int) -> None:
    cache = LeaderEpochCache()
    for offset, record in enumerate(log):
        cache.assign(record, offset)
    if not log or epoch > log[-1]:
        assert cache.end_offset_for(epoch, len(log)) == (-1, -1)
    else:
        assert cache.end_offset_for(epoch, len(log))[1] == sum(record <= epoch for record in log)


@given(CALLS)
def test_reading_the_entries_again_gives_the_same_cache(calls: list[tuple[str, int]]) -> None:
    cache = LeaderEpochCache()
    for step in calls:
        call(cache, *step)
    assert LeaderEpochCache(map(EpochEntry._make, cache.entries)).entries == cache.entries

"""The five states of a group and the ways between them, as one table (S8.2)."""

from __future__ import annotations

from enum import Enum


class GroupState(Enum):
    """By the names that Kafka's tools show."""

    EMPTY = "Empty"
    """No members; maybe committed offsets. Also what a consumer that only commits has."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members are asked to join again, and are waited for."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The members of a new generation are settled; the leader's assignment is waited for, or is being stored."""
    STABLE = "Stable"
    """Every member has, or can ask for, its share."""
    DEAD = "Dead"
    """It is no longer here: removed, or led by another coordinator."""


_EMPTY, _PREPARING, _COMPLETING, _STABLE, _DEAD = GroupState

TRANSITIONS: dict[GroupState, frozenset[GroupState]] = {
    _EMPTY: frozenset({_PREPARING, _DEAD}),
    _PREPARING: frozenset({_COMPLETING, _EMPTY, _DEAD}),
    _COMPLETING: frozenset({_STABLE, _PREPARING, _DEAD}),
    _STABLE: frozenset({_PREPARING, _DEAD}),
    _DEAD: frozenset(),
}
"""Where a group may go from each state."""

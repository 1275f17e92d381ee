"""What happens to groups, told to whoever wants to know: the broker writes it to its log. Nothing depends on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.groups.group import Group
    from tidelog.groups.member import Member


class Story:
    """This one says nothing. Each method is called when it has happened, and must not change anything."""

    def member_joined(self, group: Group, member: Member, how: str) -> None:
        """For the first time, or again in a way that needs a rebalance: `how` is what it did."""

    def member_returned(self, group: Group, member: Member) -> None:
        """A static one, to its place: the others hear nothing of it."""

    def member_gone(self, group: Group, member: Member, why: str) -> None:
        """It left, or was taken out. `why` is what it did or did not do."""

    def rebalance_began(self, group: Group, now_ms: int) -> None:
        """Its members have to join again."""

    def generation_began(self, group: Group, now_ms: int) -> None:
        """The rebalance is complete; the group may be empty now."""

    def became_stable(self, group: Group, now_ms: int) -> None:
        """The assignment of its leader is stored."""

    def offsets_forgotten(self, group: Group, count: int) -> None:
        """So many committed offsets expired."""

    def moved(self, group: Group) -> None:
        """Another broker coordinates it."""

    def ended(self, group: Group) -> None:
        """It is kept no more."""

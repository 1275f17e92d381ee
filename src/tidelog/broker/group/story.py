"""What the log of a coordinator says of its groups.

A rebalance has two lines: why it began, and what came of it. Hundreds of members may join in one rebalance, so the
second line counts them and names a few; each of them has a line at DEBUG. A static member that comes back to its place
has a line too, and no rebalance. Offsets that expire are summed up.
"""

from __future__ import annotations

import logging

from tidelog.groups import GroupState
from tidelog.groups.group import Group
from tidelog.groups.member import Member
from tidelog.groups.story import Story
from tidelog.wording import counted, shown

_log = logging.getLogger(__name__)

_MOST_NAMED = 3
"""Members of one kind that a line names."""


class _Rebalance:
    """What has happened to a group since its last generation."""

    __slots__ = ("gone", "joined", "names", "since_ms", "why")

    def __init__(self) -> None:
        self.since_ms: int | None = None
        self.why = "its members have to join again"
        self.joined = 0
        self.gone = 0
        self.names: list[str] = []
        """Of the first few that came or went, with what they did."""


class GroupStory(Story):
    """Of all groups of a broker."""

    def __init__(self) -> None:
        self._under_way: dict[str, _Rebalance] = {}
        self._forgotten_offsets = self._forgetting_groups = self._ended_groups = 0

    # Members and generations

    def member_joined(self, group: Group, member: Member, how: str) -> None:
        if _log.isEnabledFor(logging.INFO):
            rebalance = self._note(group, member, how)
            rebalance.joined += 1

    def member_returned(self, group: Group, member: Member) -> None:
        _log.info(
            "%s came back as a static member: group %s does not rebalance, generation %d",
            _named(member),
            shown(group.id),
            group.generation,
        )

    def member_gone(self, group: Group, member: Member, why: str) -> None:
        if _log.isEnabledFor(logging.INFO):
            rebalance = self._note(group, member, why)
            rebalance.gone += 1

    def _note(self, group: Group, member: Member, what: str) -> _Rebalance:
        rebalance = self._under_way.setdefault(group.id, _Rebalance())
        is_first = rebalance.since_ms is None
        if is_first or len(rebalance.names) < _MOST_NAMED or _log.isEnabledFor(logging.DEBUG):
            text = f"{_named(member)} {what}"
            if is_first:
                rebalance.why = text
            if len(rebalance.names) < _MOST_NAMED:
                rebalance.names.append(text)
            _log.debug("group %s, generation %d: %s", shown(group.id), group.generation, text)
        return rebalance

    def rebalance_began(self, group: Group, now_ms: int) -> None:
        if not _log.isEnabledFor(logging.INFO):
            return
        rebalance = self._under_way.setdefault(group.id, _Rebalance())
        rebalance.since_ms = now_ms
        _log.info(
            "a rebalance of group %s began, generation %d with %s: %s",
            shown(group.id),
            group.generation,
            counted(len(group.members), "member"),
            rebalance.why,
        )

    def generation_began(self, group: Group, now_ms: int) -> None:
        rebalance = self._under_way.pop(group.id, None)
        if rebalance is None or not _log.isEnabledFor(logging.INFO):
            return
        took_s = 0.0 if rebalance.since_ms is None else (now_ms - rebalance.since_ms) / 1000
        changed = f"{rebalance.joined:,} joined and {rebalance.gone:,} went"
        names = ", ".join(rebalance.names)
        if rebalance.joined + rebalance.gone > len(rebalance.names):
            names += f" and {rebalance.joined + rebalance.gone - len(rebalance.names):,} more"
        if group.state is GroupState.EMPTY:
            text = "group %s is empty, generation %d, after %.1f s; %s: %s"
            _log.info(text, shown(group.id), group.generation, took_s, changed, names or "no members")
            return
        _log.info(
            "the rebalance of group %s is complete after %.1f s: generation %d has %s, protocol %s, leader %s; %s: %s",
            shown(group.id),
            took_s,
            group.generation,
            counted(len(group.members), "member"),
            shown(group.protocol),
            shown(group.leader),
            changed,
            names or "all were members before",
        )

    def became_stable(self, group: Group, now_ms: int) -> None:
        _log.debug("group %s, generation %d: its assignment is stored", group.id, group.generation)

    # Offsets and ends

    def offsets_forgotten(self, group: Group, count: int) -> None:
        if count:
            self._forgotten_offsets += count
            self._forgetting_groups += 1

    def moved(self, group: Group) -> None:
        self._under_way.pop(group.id, None)

    def ended(self, group: Group) -> None:
        self._under_way.pop(group.id, None)
        self._ended_groups += 1
        _log.debug("group %s is deleted", group.id)

    def tell_expired(self) -> None:
        """At the end of a check for old offsets."""
        if self._forgotten_offsets or self._ended_groups:
            _log.info(
                "%s of %s expired (offsets.retention.minutes); %s were deleted since the last check, expired or not",
                counted(self._forgotten_offsets, "committed offset"),
                counted(self._forgetting_groups, "group"),
                counted(self._ended_groups, "group"),
            )
        self._forgotten_offsets = self._forgetting_groups = self._ended_groups = 0


def _named(member: Member) -> str:
    return f"member {shown(member.id)} at {shown(member.client.host.lstrip('/'))}"

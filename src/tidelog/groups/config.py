"""The settings of groups, by Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.config.broker import BrokerConfig
from tidelog.groups.lengths import MAX_MEMBERS
from tidelog.groups.usage import GROUPS_MAX, MEMBERS_MAX_BYTES, METADATA_MAX_BYTES, OFFSETS_MAX

_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Those that begin with `broker_` or hold pending members have tidelog's names."""

    min_session_timeout_ms: int
    max_session_timeout_ms: int
    max_size: int
    """At most MAX_MEMBERS, whatever the setting says."""
    initial_rebalance_delay_ms: int
    new_member_join_timeout_ms: int = 5 * _MINUTE_MS
    """How long a new member may wait for a rebalance: it cannot heartbeat before it knows its id. Not a setting."""
    pending_member_timeout_ms: int = _MINUTE_MS
    """How long a pending member id is kept if the session timeout is not shorter. Not a setting."""
    offset_metadata_max_bytes: int
    offsets_retention_ms: int
    broker_groups_max: int
    group_pending_members_max: int
    broker_members_max_bytes: int
    broker_offsets_max: int
    broker_offset_metadata_max_bytes: int

    @classmethod
    def of(cls, config: BrokerConfig) -> GroupConfig:
        return cls(
            min_session_timeout_ms=config["group.min.session.timeout.ms"],
            max_session_timeout_ms=config["group.max.session.timeout.ms"],
            max_size=min(config["group.max.size"], MAX_MEMBERS),
            initial_rebalance_delay_ms=config["group.initial.rebalance.delay.ms"],
            offset_metadata_max_bytes=config["offset.metadata.max.bytes"],
            offsets_retention_ms=config["offsets.retention.minutes"] * _MINUTE_MS,
            broker_groups_max=config[GROUPS_MAX],
            group_pending_members_max=config["tidelog.group.pending.members.max"],
            broker_members_max_bytes=config[MEMBERS_MAX_BYTES],
            broker_offsets_max=config[OFFSETS_MAX],
            broker_offset_metadata_max_bytes=config[METADATA_MAX_BYTES],
        )

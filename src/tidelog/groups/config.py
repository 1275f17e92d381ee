"""The settings of groups, by Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.config.broker import BrokerConfig

_MAX_INT = 2**31 - 1
_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Defaults are Kafka's; those that begin with `broker_` or hold pending members have tidelog's names."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = _MAX_INT
    initial_rebalance_delay_ms: int = 3_000
    new_member_join_timeout_ms: int = 5 * _MINUTE_MS
    """How long a new member may wait for a rebalance: it cannot heartbeat before it knows its id. Not a setting."""
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 10_080 * _MINUTE_MS
    broker_groups_max: int = 100_000
    broker_pending_members_max: int = 50_000
    group_pending_members_max: int = 10_000
    broker_offsets_max: int = 1_000_000
    broker_offset_metadata_max_bytes: int = 64 << 20

    @classmethod
    def of(cls, config: BrokerConfig) -> GroupConfig:
        return cls(
            min_session_timeout_ms=config["group.min.session.timeout.ms"],
            max_session_timeout_ms=config["group.max.session.timeout.ms"],
            max_size=config["group.max.size"],
            initial_rebalance_delay_ms=config["group.initial.rebalance.delay.ms"],
            offset_metadata_max_bytes=config["offset.metadata.max.bytes"],
            offsets_retention_ms=config["offsets.retention.minutes"] * _MINUTE_MS,
            broker_groups_max=config["tidelog.broker.groups.max"],
            broker_pending_members_max=config["tidelog.broker.pending.members.max"],
            group_pending_members_max=config["tidelog.group.pending.members.max"],
            broker_offsets_max=config["tidelog.broker.offsets.max"],
            broker_offset_metadata_max_bytes=config["tidelog.broker.offset.metadata.max.bytes"],
        )

"""Consumer groups, the classic protocol: members, rebalances, committed offsets. Pure (S8, S9).

`Groups` is the coordinator of one partition of __consumer_offsets; `partition_of` says which one a group is in. Time,
chance and the log are the caller's: each request comes with `now_ms` (milliseconds since 1970 that never go back), with
a `ticket` (anything but None), and a join with a suffix for a new member id. What comes out is a list of effects, to be
carried out in their order:

- `Answer(ticket, message)`: send it. Each ticket is answered exactly once, in this call or in a later one.
- `Answers`: `take` each of them and send it, now or in later turns of the loop.
- `Write(records, done)`: append the records, all or none, behind those of earlier writes. Call `done(error, now_ms)`
  when they are committed or have failed, and carry out the effects it returns. REQUEST_TIMED_OUT (they are in the log
  but not committed in time) is not the end: call `done` again when it is known what became of them.

The life of a `Groups`: `replay(records)` until the end of the log, `loaded(now_ms)`, then requests and, whenever
`deadline_ms()` has come, `expire(now_ms)`. What is called on its `forgetting`: every
offsets.retention.check.interval.ms `begin_expiry()`, and then `expire_offsets(most, now_ms)` while it `has_expiry`;
after `topics_deleted(topics)` `forget_deleted(most, now_ms)` while it `has_deleted_topics`. At last `unload(now_ms)`.
Before and after that the broker answers for itself, with `refuse(request, error, version)`.

| request | method | answer |
|---|---|---|
| JoinGroup 0-9 | `join` | the response |
| SyncGroup 0-5 | `sync` | the response |
| Heartbeat 0-4 | `heartbeat` | the response |
| LeaveGroup 0-5 | `leave` | the response |
| OffsetCommit 2-10 | `commit_offsets`; of very many partitions a `LargeCommit`, then `commit_large` | the response |
| OffsetFetch 1-10 | `fetch_offsets`, for each of `fetched_groups(request)` | a group, for `fetch_response(groups)` |
| the same of very many partitions | `snapshot_offsets` | a Snapshot, for `fetched` piece by piece |
| OffsetDelete 0 | `subscriptions`, which are read piece by piece, then `delete_offsets` | the response |
| DescribeGroups 0-6 | `describe`, for each group | returned, not an effect |
| ListGroups 0-5 | `list_groups`, of each partition | returned, not an effect |
| DeleteGroups 0-2 | `delete_group`, for each group | a result |

The modules, in the order to read them: `states`, `member`, `group`, `rebalance`, `joining`, `returning`, `syncing`,
`leaving`; `subscriptions`; `commits`, `offsets`, `large_commits`, `retention`, `deletions`, `forgetting`; `usage` and
`lengths`, for what clients can make groups keep; `records`; `timers`, `effects`, `story`; `groups`; and for clients
`assignors`.
"""

from tidelog.groups.answers import fetch_error, fetch_response, fetched_groups, refuse
from tidelog.groups.commits import Snapshot, topic_id_of
from tidelog.groups.config import GroupConfig
from tidelog.groups.effects import Answer, Answers, Effect, Record, Ticket, Write
from tidelog.groups.groups import Groups
from tidelog.groups.large_commits import LARGE_COMMIT_MAX_BYTES, LargeCommit
from tidelog.groups.lengths import MAX_CLIENT_ID, MAX_GROUP_ID, MAX_MEMBERS
from tidelog.groups.member import Client
from tidelog.groups.offsets import fetched
from tidelog.groups.records import NO_BAD_RECORDS, BadRecords, partition_of
from tidelog.groups.states import GroupState
from tidelog.groups.subscriptions import Subscriptions
from tidelog.groups.usage import MEMBERS_MAX_BYTES, Usage

__all__ = [
    "LARGE_COMMIT_MAX_BYTES",
    "MAX_CLIENT_ID",
    "MAX_GROUP_ID",
    "MAX_MEMBERS",
    "MEMBERS_MAX_BYTES",
    "NO_BAD_RECORDS",
    "Answer",
    "Answers",
    "BadRecords",
    "Client",
    "Effect",
    "GroupConfig",
    "GroupState",
    "Groups",
    "LargeCommit",
    "Record",
    "Snapshot",
    "Subscriptions",
    "Ticket",
    "Usage",
    "Write",
    "fetch_error",
    "fetch_response",
    "fetched",
    "fetched_groups",
    "partition_of",
    "refuse",
    "topic_id_of",
]

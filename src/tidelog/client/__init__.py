"""The client core: connections, metadata, idempotent produce, fetch by partition, admin calls.

It works on batches, not on records: what produces takes encoded batches, what fetches gives them undecoded, and the
callers (the command line, the lab, Spark) choose how records become bytes. `cluster` tries again, over `contacts`,
which finds brokers of its cluster, `connections` and `racing`. `produce` over `sequences` writes, `batching` makes
batches of single records, `fetch` over `fetch_session` reads,
`committed` leaves out aborted transactions, `offsets` and `admin` ask the rest, `leadership` moves replicas and
leaders, `watermarks` asks each replica for its own. `waits` knows what keeps calls from ending, for whoever wants to
tell a user.

Consumer groups: `groups`, `group_offsets`, `group_lag` and `group_reset` over `coordinators` look at them and change
what they have committed; `membership` over `seat` and `consumer_protocol` is being a member.
"""

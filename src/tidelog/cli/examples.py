"""The examples that stand under each command's help. A test checks that every line is one the command line takes."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": (
        "tidelog up --brokers 3 --detach",
        "tidelog topics create orders --partitions 6",
        "echo hello | tidelog produce orders",
        "tidelog consume orders --follow",
        "tidelog groups describe billing",
    ),
    "broker": (
        "tidelog broker --config server.properties",
        "tidelog broker --config server.properties --set log.retention.hours=24",
    ),
    "cluster": ("tidelog cluster describe",),
    "cluster log-dirs": ("tidelog cluster log-dirs",),
    "cluster describe": (
        "tidelog cluster describe",
        "tidelog cluster describe --json | jq .under_replicated",
    ),
    "configs": (
        "tidelog configs describe --topic orders",
        "tidelog configs alter --topic orders retention.ms=60000",
    ),
    "configs describe": (
        "tidelog configs describe --topic orders",
        "tidelog configs describe --topic orders --all",
        "tidelog configs describe --broker 1 log.retention.ms log.dirs",
    ),
    "configs alter": (
        "tidelog configs alter --topic orders retention.ms=60000 cleanup.policy=compact",
        "tidelog configs alter --broker-default log.cleaner.threads=2",
    ),
    "configs delete": ("tidelog configs delete --topic orders retention.ms",),
    "consume": (
        "tidelog consume orders --offset -10",
        "tidelog consume orders --since 1h --follow --keys --times",
        "tidelog consume --regex 'orders-.*' --json | jq .value",
        "tidelog consume orders --group billing --follow",
    ),
    "down": (
        "tidelog down",
        "tidelog down --data ci",
    ),
    "elect": (
        "tidelog elect preferred --all",
        "tidelog elect unclean --topic orders --partition 0",
    ),
    "groups": (
        "tidelog groups list",
        "tidelog groups describe billing",
    ),
    "groups list": (
        "tidelog groups list",
        "tidelog groups list --state empty,dead",
    ),
    "groups describe": (
        "tidelog groups describe billing",
        "tidelog groups describe billing --watch",
        "tidelog groups describe --all-groups --state",
        "tidelog groups describe billing --json | jq '.offsets[].lag'",
    ),
    "groups delete": ("tidelog groups delete billing --yes",),
    "groups export": (
        "tidelog groups export billing > billing.csv",
        "tidelog groups export billing --topic orders:0,1",
    ),
    "groups reset-offsets": (
        "tidelog groups reset-offsets billing --all-topics --to-earliest",
        "tidelog groups reset-offsets billing --topic orders:0,1 --shift-by -10 --execute",
        "tidelog groups reset-offsets billing --topic orders --by-duration PT30M --execute",
        "tidelog groups reset-offsets billing --from-file billing.csv --execute",
    ),
    "lab": (
        "tidelog lab show loss --truncation hw",
        "tidelog lab sim --seed 7",
    ),
    "lab list": ("tidelog lab list",),
    "lab show": (
        "tidelog lab show loss --truncation hw    records are lost, by the rule of before leader epochs",
        "tidelog lab show loss                    and how leader epochs save them",
        "tidelog lab show loss --svg loss.svg",
    ),
    "lab sim": (
        "tidelog lab sim --seed 7",
        "tidelog lab sim --seeds 0-999 --jobs 2 --keep-going",
    ),
    "log": ("tidelog log dump tidelog-data/broker-1/orders-0",),
    "log dump": (
        "tidelog log dump tidelog-data/broker-1/orders-0",
        "tidelog log dump tidelog-data/broker-1/orders-0 --records --from 1000",
        "tidelog log dump 00000000000000000000.log --records --json | jq .value",
    ),
    "log strays": (
        "tidelog log strays tidelog-data/broker-1",
        "tidelog log strays tidelog-data/broker-1 --json",
    ),
    "pipeline": (
        "tidelog pipeline init orders",
        "tidelog pipeline run",
    ),
    "pipeline init": ("tidelog pipeline init orders",),
    "pipeline run": (
        "tidelog pipeline run",
        "tidelog pipeline run --full-refresh orders_by_minute",
    ),
    "pipeline dry-run": ("tidelog pipeline dry-run",),
    "pipeline status": (
        "tidelog pipeline status",
        "tidelog pipeline status --json | jq .state",
    ),
    "produce": (
        "echo hello | tidelog produce orders",
        r"printf '42:first\n43:second\n' | tidelog produce orders --key-separator :",
        "tidelog consume orders --json | tidelog produce copy --json",
    ),
    "reassign": (
        "tidelog reassign --topic orders --replicas 1,2,3",
        "tidelog reassign --replication-factor 3 --all --execute --wait",
        "tidelog reassign --brokers 1,2,3,4 --all --generate > plan.json",
        "tidelog reassign --file plan.json --execute",
        "tidelog reassign --list",
    ),
    "status": (
        "tidelog status",
        "tidelog status --data ci --json",
    ),
    "topics": (
        "tidelog topics create orders --partitions 6",
        "tidelog topics describe orders --watermarks",
    ),
    "topics create": (
        "tidelog topics create orders --partitions 6 --replication-factor 3",
        "tidelog topics create orders --if-not-exists --config retention.ms=60000",
    ),
    "topics list": (
        "tidelog topics list",
        "tidelog topics list --internal --json | jq -r .topic",
    ),
    "topics describe": (
        "tidelog topics describe",
        "tidelog topics describe orders --watermarks",
        "tidelog topics describe orders --sizes",
    ),
    "topics trim": (
        "tidelog topics trim orders --before-time 7d",
        "tidelog topics trim orders --partition 0 --before-offset 1000 --execute",
        "tidelog topics trim orders --all --execute",
    ),
    "topics alter": (
        "tidelog topics alter orders --partitions 12",
        "tidelog topics alter orders --config retention.ms=60000 --delete-config max.message.bytes",
    ),
    "topics delete": (
        "tidelog topics delete orders",
        "tidelog topics delete orders payments --yes",
    ),
    "zookeeper": (
        "tidelog zookeeper",
        "tidelog zookeeper --port 2182 --data zk",
    ),
}
"""By the words of a command."""

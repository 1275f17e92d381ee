"""Kafka 4.1.0 on three nodes: the first is broker and the only controller, the others are brokers.

So every broker but the first may be stopped, or all others at once, and the cluster still has its controller.
"""

from __future__ import annotations

from pathlib import Path

from peers.kafka import CLUSTER_ID, KraftBroker, Settings
from peers.process import run_java

CONTROLLER = 1
NODES = (1, 2, 3)


class KraftNode(KraftBroker):
    """Formatted without eligible leader replicas (KIP-966).

    With them, 4.1.0 cannot be restarted after somebody changed a default of all brokers: a broker that replays the
    ClearElrRecord of that change together with the creation of a topic fails, and never becomes ready.
    """

    def start(self, deadline_s: float = 90.0) -> None:
        if not (self.log_dir / "meta.properties").exists():
            self._write_configuration()
            without = ["--feature", "eligible.leader.replicas.version=0"]
            arguments = ["format", "--cluster-id", CLUSTER_ID, "--config", str(self._properties), *without]
            run_java(self.version, "kafka.tools.StorageTool", arguments)
        super().start(deadline_s)


def kraft_nodes(directory: Path, settings: Settings) -> dict[int, KraftNode]:
    """By id, to be started in this order and stopped in the reverse: brokers need their controller for both."""
    controller = KraftNode(directory / f"node-{CONTROLLER}", settings=settings)
    voters = controller.settings["controller.quorum.voters"]
    nodes = {CONTROLLER: controller}
    for node_id in NODES:
        if node_id != CONTROLLER:
            own: Settings = {"node.id": node_id, "process.roles": "broker", "controller.quorum.voters": voters}
            node = KraftNode(directory / f"node-{node_id}", settings={**settings, **own})
            node.settings["listeners"] = f"PLAINTEXT://{node.bootstrap}"
            nodes[node_id] = node
    return nodes

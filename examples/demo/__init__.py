"""The parts of `make demo`: orders and what becomes of them, a cluster, the load, the proof, the picture."""

"""The stories: short scripts for the simulator, each of one thing that replication does or suffers."""

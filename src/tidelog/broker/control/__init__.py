"""The controller's asyncio shell: the race for /controller, reading, writing, telling brokers (S12)."""

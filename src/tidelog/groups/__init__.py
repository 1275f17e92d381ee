"""Consumer groups, the classic protocol. Pure (S8, S9)."""

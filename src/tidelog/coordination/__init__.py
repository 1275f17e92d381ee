"""How brokers agree: versioned nodes in a tree, sessions, watches. `port` says what; the homes say where it is kept."""

"""The real homes of the ports: this machine's clock, chance and disk."""

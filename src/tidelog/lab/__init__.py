"""The simulated homes of the ports: virtual time, a network and a disk that a seed decides over."""

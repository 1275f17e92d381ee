"""Framed connections: what accepts, reads and answers requests, and the calling side."""

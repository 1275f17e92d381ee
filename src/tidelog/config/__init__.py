"""Configuration: one table of settings, what a file makes of it, and how layers of values resolve."""

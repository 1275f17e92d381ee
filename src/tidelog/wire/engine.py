"""Runs compiled message plans over bytes."""

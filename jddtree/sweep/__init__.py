"""Sweeps: every method beside its baseline and its exactness line, in one process."""

"""Targets and drafters: mathematics only."""

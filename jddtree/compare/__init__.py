"""Comparisons of this package with other implementations."""

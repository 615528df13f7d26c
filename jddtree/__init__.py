"""Speculative decoding with draft trees in JAX: exact output, one compiled program a round."""

"""Accelerator kernels, one folder an operation; imports nothing but JAX."""

"""Checkpoints in two forms: published safetensors folders, and Orbax folders that a model restores from."""

from jddtree.checkpoint.open import Checkpoint, open_checkpoint, restore

__all__ = ["Checkpoint", "open_checkpoint", "restore"]

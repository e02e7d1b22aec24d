"""A plain numpy float32 forward pass: what a package is compared with."""

from anemone.reference.model import KVCache, Reference

__all__ = ["KVCache", "Reference"]

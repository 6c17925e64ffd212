"""New tokens from a trained model."""

from triform.generation.decoding import generate

__all__ = ["generate"]

"""`triform train ...`, the same as `python train.py ...`."""

from triform.run import main

__all__ = ["main"]

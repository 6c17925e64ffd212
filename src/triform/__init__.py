"""Transformers of three forms from one set of parts."""

"""Answers `import xformers` where it is not installed."""

__version__ = "0.0.34"
_is_triton_available = True

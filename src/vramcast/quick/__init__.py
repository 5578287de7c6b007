"""The quick formula: activations of a network that does not exist yet, from six numbers. No torch, no trace."""

from vramcast.quick.formula import QuickAnswer, QuickQuestion, answer

__all__ = ["QuickAnswer", "QuickQuestion", "answer"]

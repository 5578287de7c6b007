"""The class that answers were made of until version 1."""

from __future__ import annotations


class OpenAIObject(dict[str, object]):
    """Only its name is used."""

"""Names that a script takes from OpenAI's package to write down types; nothing is asked of a server."""

from __future__ import annotations

from openai import openai_object

__all__ = ["openai_object"]

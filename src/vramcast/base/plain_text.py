"""Text from files and of users, fit to be shown: nothing in it moves the cursor or changes colours."""

from __future__ import annotations

import re

# Control characters but for the end of a line and a tab; signs that turn the direction of text round; halves of
# characters, which no terminal takes.
_NOT_SHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """The text with escapes (\\x1b) in place of what a terminal would act on."""
    return _NOT_SHOWN.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

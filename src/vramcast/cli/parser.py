"""A parser that takes every option in both spellings, --batch-size and --batch_size, and helps whoever misspelt one."""

from __future__ import annotations

import argparse
import difflib
from typing import Any, NoReturn

_UNKNOWN = "unrecognized arguments: "
_NEAREST = 4


class Parser(argparse.ArgumentParser):
    """Parsers of the verbs are of the same class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.known_options: set[str] = set()
        """Of all verbs."""

    def error(self, message: str) -> NoReturn:
        super().error(self.with_suggestion(message))

    def with_suggestion(self, message: str) -> str:
        """Name the nearest option beside one that there is not."""
        if not message.startswith(_UNKNOWN):
            return message
        words = message.removeprefix(_UNKNOWN).split()
        named = next((word.partition("=")[0] for word in words if word.startswith("--")), "")
        close = difflib.get_close_matches(named, sorted(self.known_options), n=_NEAREST, cutoff=0.6) if named else []
        # Letters in another order are the most likely mistake: --sqe is --seq, not --set.
        close.sort(key=lambda option: sorted(option) != sorted(named))
        return message + (f"; did you mean {close[0]}?" if close else "")

    def _parse_optional(self, arg_string: str) -> Any:
        name, equals, value = arg_string.partition("=")
        if name.startswith("--") and name not in self._option_string_actions:
            arg_string = name.replace("_", "-") + equals + value
        return super()._parse_optional(arg_string)

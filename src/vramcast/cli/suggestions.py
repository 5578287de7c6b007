"""What somebody may have meant who misspelt an option."""

from __future__ import annotations

import argparse
import difflib
from typing import Any, NoReturn

_UNKNOWN = "unrecognized arguments: "


class SuggestingParser(argparse.ArgumentParser):
    """Names the nearest option beside one that there is not."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.known_options: set[str] = set()
        """Of all verbs."""

    def error(self, message: str) -> NoReturn:
        super().error(self.with_suggestion(message))

    def with_suggestion(self, message: str) -> str:
        if not message.startswith(_UNKNOWN):
            return message
        words = message.removeprefix(_UNKNOWN).split()
        named = next((word.partition("=")[0] for word in words if word.startswith("--")), "")
        close = difflib.get_close_matches(named, sorted(self.known_options), n=1, cutoff=0.6) if named else []
        return message + (f"; did you mean {close[0]}?" if close else "")

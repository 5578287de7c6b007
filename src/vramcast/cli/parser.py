"""A parser that takes every option in both spellings: --batch-size and --batch_size."""

from __future__ import annotations

import argparse
from typing import Any


class Parser(argparse.ArgumentParser):
    """Parsers of the verbs are of the same class."""

    def _parse_optional(self, arg_string: str) -> Any:
        name, equals, value = arg_string.partition("=")
        if name.startswith("--") and name not in self._option_string_actions:
            arg_string = name.replace("_", "-") + equals + value
        return super()._parse_optional(arg_string)

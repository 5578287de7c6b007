"""A parser that takes every option in both spellings, --batch-size and --batch_size, and helps whoever misspelt one."""

from __future__ import annotations

import argparse
import difflib
import re
from typing import Any, NoReturn

from vramcast.base.language import language, sentence

_UNKNOWN = "unrecognized arguments: "
_CHOICE = re.compile(r"argument .*: invalid choice: '?([^']*?)'? \(choose from (.*)\)")
_NEAREST = 4
OWN_TEXTS = (
    "usage: ",
    "options",
    "positional arguments",
    "show this help message and exit",
    "show program's version number and exit",
    "the following arguments are required: {0}",
    "unrecognized arguments: {0}",
    "unrecognized arguments: {0}; did you mean {1}?",
    "unrecognized arguments: {0}; this verb has no {1}, which is for {2}",
    "argument {0}: {1}",
    "expected one argument",
    "expected at least one argument",
    "invalid choice: {0} (choose from {1})",
    "invalid choice: {0}; did you mean {1}?",
    "invalid {0} value: {1}",
    "not allowed with argument {0}",
    "ignored explicit argument {0}",
    "ambiguous option: {0} could match {1}",
    "`{0} --help` says what there is",
)
"""What argparse itself says."""


def translate_help(parser: argparse.ArgumentParser) -> None:
    """Say what the options mean in the language in force."""
    if language() == "en":
        return
    parser.description = sentence(parser.description or "") or None
    parser.epilog = sentence(parser.epilog or "") or None
    for group in parser._action_groups:
        group.title = sentence(group.title or "") or None
        group.description = sentence(group.description or "") or None
    for action in parser._actions:
        if action.help and action.help != argparse.SUPPRESS:
            action.help = sentence(action.help)
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                choice.help = sentence(choice.help or "")
    parser.formatter_class = WideFormatter


class WideFormatter(argparse.RawDescriptionHelpFormatter):
    """Lines that are as wide as they look: a Chinese character takes two columns."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        from vramcast.report.wrapping import wrap

        return wrap(re.sub(r"\s+", " ", text).strip(), width, 100)


class Parser(argparse.ArgumentParser):
    """Parsers of the verbs are of the same class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.known_options: dict[str, set[str]] = {}
        """Those of each verb."""
        self._verb = ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._verb = next((word for word in args or () if word in self.known_options), "")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """In three lines, and not after all options of the verb."""
        command = f"{self.prog} {self._verb}".rstrip()
        said = f"{self.prog}: error: {sentence(self.with_suggestion(message))}"
        self.exit(2, f"{self._short_usage()}{said}\n{sentence(f'`{command} --help` says what there is')}\n")

    def _short_usage(self) -> str:
        """Without the options one by one."""
        formatter = self._get_formatter()
        positionals = [action for action in self._actions if not action.option_strings]
        formatter.add_usage(None, positionals, [], f"{sentence('usage: ').rstrip()} ")
        whole = formatter.format_help().rstrip()
        return whole.replace(self.prog, f"{self.prog} [...]", 1) + "\n"

    def format_usage(self) -> str:
        return super().format_usage().replace("usage: ", sentence("usage: ").rstrip() + " ", 1)

    def format_help(self) -> str:
        return super().format_help().replace("usage: ", sentence("usage: ").rstrip() + " ", 1)

    def with_suggestion(self, message: str) -> str:
        """Name the nearest option of the verb beside one that it does not have, or the verbs that have it; the nearest
        verb or value in place of all of them."""
        choice = _CHOICE.fullmatch(message)
        if choice is not None:
            known = [name.strip("'") for name in choice[2].split(", ")]
            close = difflib.get_close_matches(choice[1], known, n=1, cutoff=0.6)
            end = message.index(" (choose from")
            return f"{message[:end]}; did you mean {close[0]}?" if close else message
        if not message.startswith(_UNKNOWN):
            return message
        words = message.removeprefix(_UNKNOWN).split()
        named = next((word.partition("=")[0] for word in words if word.startswith("--")), "")
        named = named.replace("_", "-")
        others = [verb for verb, options in self.known_options.items() if named in options and verb != self._verb]
        if others:
            return f"{message}; this verb has no {named}, which is for {', '.join(others)}"
        own = self.known_options.get(self._verb) or set().union(*self.known_options.values())
        close = difflib.get_close_matches(named, sorted(own), n=_NEAREST, cutoff=0.6) if named else []
        # Letters in another order are the most likely mistake: --sqe is --seq, not --set.
        close.sort(key=lambda option: sorted(option) != sorted(named))
        return message + (f"; did you mean {close[0]}?" if close else "")

    def _parse_optional(self, arg_string: str) -> Any:
        name, equals, value = arg_string.partition("=")
        if name.startswith("--") and name not in self._option_string_actions:
            arg_string = name.replace("_", "-") + equals + value
        return super()._parse_optional(arg_string)

    def _get_option_tuples(self, option_string: str) -> Any:
        """Before Python 3.12 an option of the user's command that several of ours begin with (`train.py --n 5`) was
        refused as ambiguous, although the command takes every word after it."""
        found: list[Any] = super()._get_option_tuples(option_string)
        takes_a_command = any(action.nargs in (argparse.REMAINDER, argparse.PARSER) for action in self._actions)
        return [] if len(found) > 1 and takes_a_command else found

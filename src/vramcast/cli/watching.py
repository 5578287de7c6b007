"""`vramcast watch` on the cards here: it puts the sampler, the log, the command and the drawing together."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import TextIO

from rich.live import Live
from rich.text import Text

from vramcast.base.errors import UsageError
from vramcast.base.language import sentence
from vramcast.base.plain_text import printable
from vramcast.cli.options import EXIT_FITS
from vramcast.features.watch.command import Command
from vramcast.features.watch.history import History
from vramcast.features.watch.log import LogFile, rows
from vramcast.features.watch.loop import Stop, run
from vramcast.features.watch.process_tree import ProcessTree
from vramcast.features.watch.sample import Sample
from vramcast.features.watch.sampler import Sampler
from vramcast.gpus.nvml import NvmlSession, NvmlUnavailable
from vramcast.gpus.state import survey, visible
from vramcast.gpus.survey import Survey
from vramcast.report.console import SafeConsole
from vramcast.report.watch import plain_lines, summary_document, summary_lines, warning_texts, watch_view


def watch_live(args: argparse.Namespace, words: list[str], history: History) -> int:
    """The exit code: the command's; 128 + 15 after SIGTERM; else 0."""
    with ExitStack() as stack:
        sampler = Sampler(_look(stack), device=args.device)
        log = None if args.log is None else LogFile(args.log)
        if log is not None:
            stack.callback(log.close)
            if log.said:
                print(f"vramcast: {printable(log.said)}", file=sys.stderr)
        stop = stack.enter_context(Stop(patient=bool(words)))
        drawn = sys.stdout.isatty() and not args.json and not args.once
        command = None
        if words:
            command = Command(words, capture=drawn, to_stderr=args.json, when_done=stop.wake)
            # One that has ended already has no process to follow.
            _follow(sampler, [command.pid])
            history.subject = f"{shlex.join(words)} (process {command.pid})"
        tree = None
        if args.pid:
            tree = ProcessTree(args.pid)
            sampler.watch_processes(tree, started_here=False)
            history.subject = f"process {', '.join(map(str, args.pid))}"

        def has_ended() -> bool:
            if command is not None:
                return command.exit_code() is not None
            return args.once or (tree is not None and tree.has_ended())

        # Standard output is the command's where there is one.
        out = sys.stderr if command is not None and not args.json else sys.stdout
        view = _Drawing(stack, history, command) if drawn else _Lines(history, out, as_json=args.json)
        run(
            sampler, history, stop, interval=args.interval, log=log, has_ended=has_ended,
            show=view.show, between=view.between,
        )  # fmt: skip
        if command is not None:
            command.finish_reading()
        view.between()
    if command is not None and command.exit_code() is None:
        print(f"vramcast: {sentence(f'the command goes on as process {command.pid}')}", file=sys.stderr)
    _print_summary(history, out, as_json=args.json, once=args.once)
    if stop.signal is not None and (command is None or command.exit_code() is None):
        return EXIT_FITS if stop.signal == 2 and command is None else 128 + stop.signal
    code = command.exit_code() if command is not None else None
    return EXIT_FITS if code is None else code


def _look(stack: ExitStack) -> Callable[[], Survey]:
    """NVML stays open while the watch lasts; nvidia-smi is asked where its binding is missing."""
    try:
        session = stack.enter_context(NvmlSession())
    except NvmlUnavailable:
        return survey
    return lambda: visible(session.survey())


def _follow(sampler: Sampler, pids: list[int]) -> None:
    try:
        sampler.watch_processes(ProcessTree(pids), started_here=True)
    except UsageError:
        sampler.watch_processes(ProcessTree([]), started_here=True)


def _print_summary(history: History, out: TextIO, *, as_json: bool, once: bool) -> None:
    if as_json:
        print(json.dumps(summary_document(history)), file=out)
    elif not once:
        print(printable("\n".join(summary_lines(history))), file=out)


class _Lines:
    """Outside a terminal: a line for every card and sample, or the same as JSON."""

    def __init__(self, history: History, out: TextIO, *, as_json: bool) -> None:
        self._history = history
        self._out = out
        self._as_json = as_json

    def show(self, sample: Sample, warnings: list[str]) -> None:
        if self._as_json:
            lines = [json.dumps(row) for row in rows(sample, self._history.predicted_bytes)]
        else:
            lines = list(plain_lines(sample, self._history))
        print(printable("\n".join(lines)), file=self._out, flush=True)
        for text in warning_texts(warnings):
            print(printable(text), file=sys.stderr, flush=True)

    def between(self) -> None:
        pass


class _Drawing:
    """Draws in a terminal: panels that are redrawn, with the command's output scrolling above them."""

    def __init__(self, stack: ExitStack, history: History, command: Command | None) -> None:
        self._history = history
        self._command = command
        self._console = SafeConsole(highlight=False)
        self._live = stack.enter_context(Live(console=self._console, auto_refresh=False))
        self._console.show_cursor(True)  # a signal that cannot be caught would leave it hidden

    def show(self, sample: Sample, warnings: list[str]) -> None:
        for text in warning_texts(warnings):
            self._console.print(Text(text, style="bold yellow"))
        self._draw()

    def between(self) -> None:
        if self._command is None:
            return
        lines = self._command.take_lines()
        for line in lines:
            self._console.print(Text.from_ansi(line), soft_wrap=True)
        self._draw()

    def _draw(self) -> None:
        last = "" if self._command is None else self._command.unfinished
        self._live.update(watch_view(self._history, self._console.width, last), refresh=True)

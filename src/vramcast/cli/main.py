"""Parse the command line, run one verb, and turn its outcome into an exit code.

Little is imported until `entry` has said what signals do: Ctrl-C may come at any moment, and is never a traceback.
"""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from types import ModuleType

_SECONDS_AT_EXIT = 5.0
"""How long the functions registered for the exit may take."""

_DESCRIPTION = "Know before you train whether a PyTorch run fits the GPU, where every byte goes, and why."
_EPILOG = """\
exit codes:
  0  fits (or done)
  1  does not fit
  2  bad usage or input
  3  could not predict, and says why

`vramcast VERB --help` explains a verb.
"""


def entry() -> None:
    """The `vramcast` command. The process just ends once the result is written: neither threads of the user's code nor
    the half second that it takes to take torch apart, object by object, are waited for."""
    # Nothing is left to clean up at any moment, and workers end with this process: the signal may end it at once.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    from vramcast.base.factories import without_cache_folder
    from vramcast.cli.streams import Streams

    if sys.argv[1:2] not in (["measure"], ["calibrate"], ["watch"]):  # which start what may compile
        without_cache_folder()
    streams = Streams()
    try:
        code = main(own_process=True)
    except SystemExit as error:  # of argparse, which has said why
        code = error.code if isinstance(error.code, int) else 2
    _end(streams.code_after_writing(code))


def _end(code: int) -> None:
    """Run what was registered to run at the end, as long as it does not hang, fail or choose another exit code."""
    import _thread
    import atexit
    import os
    import time

    end = os._exit

    def end_in_time() -> None:
        time.sleep(_SECONDS_AT_EXIT)
        end(code)

    _thread.start_new_thread(end_in_time, ())
    os._exit = lambda _: end(code)  # type: ignore[assignment]
    sys.stdout = sys.stderr  # the result stands there alone
    sys.unraisablehook = lambda _: None
    atexit._run_exitfuncs()
    end(code)


def main(argv: Sequence[str] | None = None, *, own_process: bool = False) -> int:
    """The only place where errors end: a user's mistake is one line, never a traceback."""
    from vramcast.base.language import spoken
    from vramcast.cli.options import language_in

    own, flags = split_flags(sys.argv[1:] if argv is None else list(argv))
    with spoken(language_in(_before_script(own))):
        return _run(own, flags, own_process=own_process)


def _run(own: list[str], flags: list[str], *, own_process: bool) -> int:
    from vramcast.base.errors import DEFECT, VramcastError
    from vramcast.cli.options import chosen_timing, kept_off_files

    as_json = _wants_json(own)
    args = make_parser(as_json=as_json).parse_args(own)
    args.script_flags, args.own_process = flags, own_process
    try:
        with chosen_timing(args), kept_off_files(args, own_process=own_process):
            code = args.execute(args)
            sys.stdout.flush()
        return int(code)
    except VramcastError as error:
        return _failed(str(error), error.exit_code, as_json)
    except KeyboardInterrupt:
        return _failed("interrupted", 130, as_json)
    except SystemExit as error:
        # Code that a job names may say 0, which means "fits".
        return _failed(f"the job's own code ended the process: sys.exit({error.code!r})", 3, as_json)
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            return _failed(f"this needs PyTorch, and {sys.executable} has none: pip install torch", 2, as_json)
        # Python would end with 1, which means "does not fit" to whoever gates on it.
        import traceback

        traceback.print_exc()
        return _failed(f"{DEFECT}; please report the lines above", 3, as_json)


def _wants_json(argv: Sequence[str]) -> bool:
    return "--json" in _before_script(argv)


def _before_script(argv: Sequence[str]) -> Sequence[str]:
    """Our own options; what stands after a script's name is the script's."""
    if argv[:1] != ["run"]:
        return argv
    takes_none = ("--json", "--full", "--whole", "--epoch", "--longest", "--force", "--write-through", "--traceback")
    for i, word in enumerate(argv[1:], 1):
        is_value = argv[i - 1].startswith("--") and argv[i - 1] not in takes_none and "=" not in argv[i - 1]
        if not word.startswith("-") and not is_value:
            return argv[:i]
    return argv


def _failed(text: str, exit_code: int, as_json: bool) -> int:
    """Said to whoever reads standard error, and as a document to whoever asked for one."""
    from vramcast.base.language import sentence

    print(f"vramcast: {sentence(text)}", file=sys.stderr)
    if as_json:
        import json

        print(json.dumps({"error": text, "exit_code": exit_code}, indent=2))
    return exit_code


@functools.cache
def commands() -> tuple[ModuleType, ...]:
    """The verbs, in the order of the help."""
    from vramcast.cli.commands import (
        advise,
        calibrate,
        check,
        compare,
        diagnose,
        explain,
        gpus,
        init,
        mcp,
        measure,
        plan,
        predict,
        run,
        serve,
        show,
        sweep,
        table,
        watch,
        whatif,
    )

    return (
        predict, check, advise, whatif, plan, explain, table, sweep, run, init, show, measure, calibrate, compare,
        diagnose, gpus, watch, serve, mcp,
    )  # fmt: skip


def split_flags(argv: list[str]) -> tuple[list[str], list[str]]:
    """What stands after `--` is a training script's, for the verbs that read it."""
    verb = next((module for module in commands() if argv and module.__name__.endswith(f".{argv[0]}")), None)
    if "--" not in argv or not getattr(verb, "READS_SCRIPT_FLAGS", False):
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def make_parser(*, as_json: bool = False) -> argparse.ArgumentParser:
    import argparse
    from typing import NoReturn

    from vramcast import __version__
    from vramcast.cli.options import add_language_option
    from vramcast.cli.parser import Parser, translate_help

    class JsonParser(Parser):
        def error(self, message: str) -> NoReturn:
            if as_json:
                _failed(self.with_suggestion(message), 2, as_json)
                self.exit(2)
            super().error(message)

    parser = JsonParser(
        prog="vramcast", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"vramcast {__version__}")
    add_language_option(parser)
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for module in commands():
        name = module.__name__.rpartition(".")[2]
        help_text = (module.__doc__ or "").strip()
        verb = verbs.add_parser(
            name,
            help=help_text.splitlines()[0],
            description=help_text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(verb)
        add_language_option(verb)
        parser.known_options[name] = set(verb._option_string_actions)
        verb.set_defaults(execute=module.execute, runs_code=getattr(module, "RUNS_CODE", False))
        translate_help(verb)
    translate_help(parser)
    return parser


if __name__ == "__main__":
    entry()

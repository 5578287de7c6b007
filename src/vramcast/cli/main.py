"""Parse the command line, run one verb, and turn its outcome into an exit code."""

from __future__ import annotations

import argparse
import atexit
import os
import sys
import threading
from collections.abc import Sequence
from types import ModuleType

from vramcast import __version__
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
    show,
    table,
    watch,
    whatif,
)
from vramcast.cli.options import kept_off_files
from vramcast.errors import VramcastError

COMMANDS: tuple[ModuleType, ...] = (
    predict, check, advise, whatif, plan, explain, table, run, init, show, measure, calibrate, compare, diagnose, gpus,
    watch, mcp,
)  # fmt: skip

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
    """The `vramcast` command. To take torch and its libraries apart, object by object, takes half a second that nobody
    needs: once all that was asked to run at the end has run, the process just ends."""
    code = main(own_process=True)
    if threading.active_count() > 1:  # of the user's code: the interpreter waits for it
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)


def main(argv: Sequence[str] | None = None, *, own_process: bool = False) -> int:
    """The only place where errors end: a user's mistake is one line, never a traceback."""
    own, flags = split_flags(sys.argv[1:] if argv is None else list(argv))
    args = make_parser().parse_args(own)
    args.script_flags = flags
    try:
        with kept_off_files(args, own_process=own_process):
            code = args.execute(args)
            sys.stdout.flush()
        return int(code)
    except VramcastError as error:
        print(f"vramcast: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("vramcast: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone (`| head`); keep the interpreter from complaining at exit.
        sys.stdout = None
        return 0
    except Exception:
        # Python would end with 1, which means "does not fit" to whoever gates on it.
        import traceback

        traceback.print_exc()
        print(
            "vramcast: this is a defect of vramcast, not of your code; please report the lines above", file=sys.stderr
        )
        return 3


def split_flags(argv: list[str]) -> tuple[list[str], list[str]]:
    """What stands after `--` is a training script's, for the verbs that read it."""
    verb = next((module for module in COMMANDS if argv and module.__name__.endswith(f".{argv[0]}")), None)
    if "--" not in argv or not getattr(verb, "READS_SCRIPT_FLAGS", False):
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vramcast", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"vramcast {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for module in COMMANDS:
        name = module.__name__.rpartition(".")[2]
        help_text = (module.__doc__ or "").strip()
        verb = verbs.add_parser(
            name,
            help=help_text.splitlines()[0],
            description=help_text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(verb)
        verb.set_defaults(execute=module.execute, runs_code=getattr(module, "RUNS_CODE", False))
    return parser


if __name__ == "__main__":
    entry()

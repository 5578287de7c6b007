"""What is said of an error that ended the user's code: whether vramcast is to blame, where it was, and what to do.

"The script failed" is for what would fail on a card too. An error of the virtual card itself is told as such: one that
our code raises without meaning to, or that names tensors without data, which no program ever sees on a card.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

import torch

from vramcast import overlay
from vramcast.base.errors import DEFECT, CannotPredict, UsageError, VramcastError
from vramcast.card.dispatch.other_versions import failed_assert
from vramcast.card.dispatch.remedies import OWN_KERNELS, Failing, remedy_of
from vramcast.card.dispatch.unknown import is_machinery, is_of_vramcast, is_own, short_path, where_raised
from vramcast.card.stand_ins.known import hint

_LONGEST = 500
"""Characters of an error's message that are shown."""

_SHORT = 160
"""Characters up to which further lines of a message are shown beside its first."""

_MOST_NAMED = 5
"""Assumed values that are named with an error."""

_MEANT = (RuntimeError, ValueError, IndexError, OSError, ImportError, SystemExit)
"""What our code raises where CUDA, torch's own checks or the computer would."""

_OF_ARGUMENTS = re.compile(
    r"\w+\(\):? (?:received|got|argument|takes|missing|expected|invalid data type)|can't assign an? "
    r"|can't convert \S+ device type tensor|only integer tensors of a single element|assigned grad expected"
    r"|Variable data has to be a tensor|unsupported format string|Invalid (?:peer )?device id\b"
)
"""TypeError and AssertionError of torch's own checks of what it is given: no frame of torch is below ours then."""

_WITHOUT_DATA = re.compile(
    r"\bmeta (?:tensor|device)|\bon meta\b|'Meta' backend|device type:? ?meta|\bdevice='?meta|fake tensor"
)
"""Words for tensors without data, which exist on the virtual card alone."""

_NO_DRIVER = re.compile(
    r'Torch not compiled with CUDA enabled|INTERNAL ASSERT FAILED(?! at "[^"]*\bc10d[\\/]reducer\.cpp")'
)
"""What torch says where a call has reached a card that is not there. DDP's reducer counts hooks, on the host."""

_OF_DRIVER = re.compile(
    r"\bCUDA error\b|\bCUDA driver\b|\bNVIDIA driver\b|\bcuda(?:Error|Get|Set)[A-Z]\w+|CUDA unknown error"
    r"|no CUDA-capable device|No CUDA GPUs are available"
)
"""Words of CUDA's runtime and driver, which no call should reach on a virtual card."""

_TERMINAL_CODES = re.compile(r"\x1b\[[\d;]*m|\\x1b\[[\d;]*m")

_PASSED_ON = ("Traceback (most recent call last)", "Original Traceback (most recent call last)")
"""In the message of an error that a worker of a loader, a replica or a process had: its last line says what it was."""

_LINE_OF_TRACEBACK = re.compile(r'^ *File "([^"]+)", line (\d+)', re.MULTILINE)

_WITHOUT_CUDA = tuple(
    os.path.join(torch.__path__[0], *parts)
    for parts in (("_meta_registrations.py",), ("_refs", ""), ("_prims", ""), ("_decomp", ""), ("_subclasses", ""))
)
"""Files of torch that run for tensors without data, and never for those of a card."""


class ScriptFailed(CannotPredict):
    """The script ended with an error; `traceback_text` is what Python would have printed."""

    def __init__(self, message: str, traceback_text: str = "") -> None:
        super().__init__(message)
        self.traceback_text = traceback_text


class CardFailed(ScriptFailed):
    """The virtual card failed at something that the script may do."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error, put into words; nothing of what its frames hold is kept."""

    reason: str
    """Its type and the first line of its message."""
    where: str
    """file:line in the user's code."""
    is_ours: bool
    remedy: str = ""
    """What to do about it, in lines of its own."""
    needs_a_card: bool = False
    """Compiled code was to run that only a real card can run."""
    ends_on_a_card: bool = False
    """It comes of what is installed or missing, so that no value that was assumed has to do with it."""

    def sentence(self, whose: str = "the script") -> str:
        """`whose`: code that failed, where it is not us."""
        if self.is_ours:
            return f"{self.where}: vramcast failed here, not {whose}: {self.reason}"
        if self.needs_a_card:
            return f"{self.where}: {whose} cannot be followed beyond this line: {self.reason}"
        return f"{self.where}: {whose} failed: {self.reason}"


def failure_of(error: BaseException, path: str = "") -> Failure:
    """`path`: the script, whose own lines are named before those of what it calls."""
    is_ours = is_our_failure(error)
    of_files = overlay.hint(error)
    of_us = (
        f"\nOn a card this may well run: {DEFECT}; please report what --traceback prints. Until it is mended, "
        "change that line, or leave it out, for the prediction."
    )
    failing = Failing(error, str(error), path, is_ours, _is_of_driver(error), touches_files=bool(of_files))
    remedy = remedy_of(failing)
    told = of_files + (of_us if is_ours else "") + remedy.text
    return Failure(reason_of(error), where_in(error, path), is_ours, told, remedy.needs_a_card, remedy.ends_on_a_card)


def reason_of(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    if any(line.startswith(_PASSED_ON) for line in lines):
        return lines[-1][:_LONGEST] + f" ({lines[0].strip(' -.:')})"
    said = _TERMINAL_CODES.sub("", _beginning(lines)).replace("torch.meta.", "torch.cuda.") or failed_assert(error)
    return f"{type(error).__name__}: {said[:_LONGEST]}" if said else type(error).__name__


def _beginning(lines: list[str]) -> str:
    """The first line of a message, and what comes next where it says little ("2 validation errors for Config")."""
    said = lines[0] if lines else ""
    for line in lines[1:]:
        if not line.strip() or len(said) + len(line) > _SHORT:
            break
        said += f" {line.strip()}"
    return said


def is_our_failure(error: BaseException) -> bool:
    """Whether the virtual card failed, and not the code that ran on it."""
    text = str(error)
    if isinstance(error, (RuntimeError, NotImplementedError, AssertionError, ValueError)) and (
        _WITHOUT_DATA.search(text) or _NO_DRIVER.search(text)
    ):
        return True
    filename = _innermost_file(error.__traceback__)
    if _is_of_driver(error) and not is_of_vramcast(filename):  # in our own code it is what a card would say
        return not type(error).__module__.startswith(OWN_KERNELS)
    if isinstance(error, NotImplementedError):
        return is_of_vramcast(filename) or filename.startswith(_WITHOUT_CUDA)
    if isinstance(error, _MEANT) or (isinstance(error, (TypeError, AssertionError)) and _OF_ARGUMENTS.match(text)):
        return False
    return is_of_vramcast(filename) or filename.startswith(_WITHOUT_CUDA)


def _is_of_driver(error: BaseException) -> bool:
    """Raised by the driver of this computer, which a call has reached that should have ended on the virtual card."""
    if isinstance(error, getattr(torch, "AcceleratorError", ())):
        return True
    if type(error).__module__.startswith(("cupy_backends.cuda", "numba.cuda.cudadrv", "pycuda")):
        return True
    return isinstance(error, (RuntimeError, AssertionError)) and bool(_OF_DRIVER.search(str(error)))


def explain(
    error: BaseException, path: str, made: str, assumed: Mapping[str, str], argv: Sequence[str] = ()
) -> VramcastError:
    """The answer to a script that ended with an error. `made`: the steps until then, in words. `assumed`: what lines
    read that only a real run would know, in the order in which they did. `argv`: the script's own arguments."""
    if isinstance(error, SystemExit):
        error = _handled(error) or error
    if isinstance(error, VramcastError):
        return error
    if isinstance(error, SystemExit):
        what = error.code if isinstance(error.code, str) else f"exit code {error.code}"
        advice = f"{hint(what)}{_old_argument(error, argv)}"
        return ScriptFailed(f"{where_in(error, path)} ended itself after {made}: {what}{advice}{assumptions(assumed)}")
    failure = failure_of(error, path)
    trace = error.__traceback__ if failure.is_ours else _from_script(error.__traceback__)
    text = "".join(traceback.format_exception(type(error), error, trace))
    kind = CardFailed if failure.is_ours else ScriptFailed
    package = "" if failure.is_ours or isinstance(error, ImportError) or failure.remedy else hint(str(error))
    before = "" if failure.ends_on_a_card else assumptions(assumed)
    message = f"{failure.sentence()} (--traceback shows all of it){failure.remedy}{package}{before}"
    return kind(message, text)


def _handled(ended: SystemExit) -> Exception | None:
    """The error in whose handler a program ended itself. Frameworks around a whole program, such as hydra, print what
    went wrong in it and exit with 1."""
    error = ended.__context__
    return error if ended.code == 1 and isinstance(error, Exception) else None


def _old_argument(ended: SystemExit, argv: Sequence[str]) -> str:
    """What to do where the launcher's spelling of an argument is not the script's: argparse ends a program with 2."""
    if ended.code != 2 or not any(word.startswith("--local-rank=") for word in argv):
        return ""
    return (
        "\ntorch.distributed.launch passes --local-rank since PyTorch 2.0, on a card, too. Where the script knows "
        "--local_rank only, start it with torchrun, and it finds its place in the variable LOCAL_RANK, or let it take "
        "both spellings."
    )


def step_failed(error: BaseException, whose: str, assumed: Mapping[str, str]) -> str:
    """The same for a training step that is not in a script."""
    before = assumptions(assumed, may_be_given=False)
    if is_our_failure(error):
        return f"vramcast failed, not {whose}: {reason_of(error)}; {DEFECT}, please report it{before}"
    return f"{whose} failed: {reason_of(error)}{before}"


def job_failed(error: BaseException, place: str, whose: str, assumed: Mapping[str, str] | None = None) -> VramcastError:
    """The answer where code that a job names at `place` failed: a mistake in the job, unless it was ours."""
    message = f"{place}: {step_failed(error, whose, assumed or {})}"
    return CannotPredict(message) if is_our_failure(error) else UsageError(message)


def assumptions(assumed: Mapping[str, str], *, may_be_given: bool = True) -> str:
    """Names the values that were assumed before an error, the latest first. `may_be_given`: with --assume."""
    if not assumed:
        return ""
    named = [f"{where} = {value}" for where, value in assumed.items()][::-1]
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    instead = f" Give another with `vramcast run --assume {list(assumed)[-1]}=VALUE`." if may_be_given else ""
    return (
        "\nA value that vramcast assumed may be the cause. Assumed before it, the latest first: "
        f"{'; '.join(named[:_MOST_NAMED])}{more}.{instead}"
    )


def where_in(error: BaseException, path: str = "") -> str:
    """file:line of the innermost frame in the script itself, and of the one in another file that is the user's, too;
    where there is none, in any file that is not a library's."""
    trace = error.__traceback__
    place = inside = ""
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if path and filename == path:
            place, inside = f"{short_path(path)}:{trace.tb_lineno}", ""
        elif is_own(filename) and not filename.startswith("<"):
            inside = f"{short_path(filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    if any(passed_on in str(error) for passed_on in _PASSED_ON):
        lines = [(name, line) for name, line in _LINE_OF_TRACEBACK.findall(str(error)) if is_own(name)]
        inside = f"{short_path(lines[-1][0])}:{lines[-1][1]}" if lines and lines[-1][0] != path else inside
    if place and inside:
        return f"{place} (in {inside})"
    return place or where_raised(error, otherwise=short_path(path) if path else "?")


def _innermost_file(trace: TracebackType | None) -> str:
    filename = ""
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        trace = trace.tb_next
    return filename


def _from_script(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the script's first line on."""
    while trace is not None and is_machinery(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace

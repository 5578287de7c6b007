"""What is said of an error that ended the user's code: whether vramcast is to blame, where it was, and what to do.

"The script failed" is for what would fail on a card too. An error of the virtual card itself is told as such: one that
our code raises without meaning to, or that names tensors without data, which no program ever sees on a card.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

import torch

from vramcast import overlay
from vramcast.base.errors import DEFECT, CannotPredict, UsageError, VramcastError
from vramcast.card.dispatch import missing_files, modules_elsewhere
from vramcast.card.dispatch.missing_files import MADE_UP_DATA
from vramcast.card.dispatch.other_versions import failed_assert, wanted_otherwise
from vramcast.card.dispatch.unknown import is_machinery, is_of_vramcast, is_own, short_path, where_raised
from vramcast.card.stand_ins.known import absent, hint

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

_BEYOND_THE_CARDS = re.compile(r"invalid device ordinal \(cuda:(\d{1,3})\)")

_SEVERAL_WANTED = re.compile(r"^You requested gpu: \[([\d, ]+)\]")
"""What Lightning and Fabric say where there are fewer cards than `devices`."""

_TERMINAL_CODES = re.compile(r"\x1b\[[\d;]*m|\\x1b\[[\d;]*m")

_COMPILED_HERE = ("Error building extension", "CUDA_HOME environment variable is not set", "CUDA_HOME does not exist")

_NEEDS_REAL_CUDA = ("must be a CUDA tensor", "must be on CUDA", "to be a CUDA tensor", "expected a CUDA tensor")

_NO_FLASH_ATTENTION = re.compile(r"`kernels` is either not installed\b")
"""What transformers says where flash-attn was asked for and is not here: it would load a built one from the hub."""

_OWN_KERNELS = ("cupy", "numba", "pycuda")
"""Packages that compile and launch kernels of their own, past torch. Their errors bear their names."""

_WRITTEN_FOR = {
    re.compile(r"module 'numpy' has no attribute '(?:int|float|bool|object|complex|str|long)'"): "NumPy before 1.24",
    re.compile(r"was removed in the NumPy 2\.0|^Python integer -?\d+ out of bounds for u?int\d+"): "NumPy before 2.0",
    re.compile(r"binary mode of fromstring is removed"): "NumPy before 2.3",
    re.compile(r"only 0-dimensional arrays can be converted to Python scalars"): "NumPy before 2.4",
    re.compile(r"requested array has an inhomogeneous shape"): "NumPy before 1.24",
    re.compile(r"No module named 'torch\._six'"): "PyTorch before 2.0",
    re.compile(r"invalid index of a 0-dim tensor\b"): "PyTorch before 0.5",
    re.compile(r"'_\w+DataLoaderIter' object has no attribute 'next'"): "PyTorch before 1.13",
    re.compile(r"\bUnable to avoid copy while creating an array\b"): "NumPy before 2.0",
    re.compile(r"\bstft requires the return_complex parameter"): "PyTorch before 2.0",
    re.compile(r"Weights only load failed\b.*PyTorch 2\.6", re.DOTALL): "PyTorch before 2.6",
    re.compile(
        r"failed to unpack the object at pos \d+ with error \"type must be tuple of ints,but got float"
    ): "Python 2",
    re.compile(r"operator, with (?:a|two) bool tensors? is not supported"): "PyTorch before 1.2",
    re.compile(
        r"Legacy autograd function with non-static forward|deprecated since version [\d.]+ and is now removed"
        r"|only supports boolean masks|expected BoolTensor for mask"
    ): "an older PyTorch",
}
"""What says that a script was written for an older version."""

_MIXED_REDUCTIONS = re.compile(r"CompiledFunctionBackward returned an invalid gradient at index \d+ - got \[\d+\]")
"""Inductor hands a gradient of shape [C] to a parameter of shape [1, C, 1, 1]: pytorch/pytorch issue 178080, torch 2.10
and 2.11."""

_NO_NETWORK = re.compile(
    r"Name or service not known|Temporary failure in name resolution|Network is unreachable"
    r"|\bcouldn't connect to 'https?:|\boffline mode is enabled|cannot find the requested files in the local cache",
    re.IGNORECASE,
)

_NO_DATA_SET = re.compile(r"\bDataset not found\b", re.IGNORECASE)

_NO_DERIVATIVE = re.compile(r"\bderivative for aten::\w+ is not implemented")

_OF_STRIDES = re.compile(r"view size is not compatible with input tensor's size and stride")

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
    launcher = type(error).__module__.partition(".")[0].partition("_")[0]
    is_ours = is_our_failure(error)
    text = str(error)
    remedy = overlay.hint(error)
    if is_ours:
        remedy += (
            f"\nOn a card this may well run: {DEFECT}; please report what --traceback prints. Until it is mended, "
            "change that line, or leave it out, for the prediction."
        )
    ends_on_a_card = False
    needs_a_card = not is_ours and any(phrase in text for phrase in (*_NEEDS_REAL_CUDA, *_COMPILED_HERE))
    if any(phrase in text for phrase in _COMPILED_HERE):
        remedy += (
            "\nA CUDA extension is compiled here, which a virtual card could not run: leave it out (many programs have "
            "an option for PyTorch's own operators), or wrap its calls in torch.library.custom_op and teach vramcast "
            'what they return with @vramcast.rule("namespace::op").'
        )
    elif launcher in _OWN_KERNELS and _is_of_driver(error):
        needs_a_card = True
        remedy += (
            f"\n{launcher} launches kernels of its own, past PyTorch, which a virtual card cannot run: leave them out, "
            "or wrap their calls in torch.library.custom_op and teach vramcast what they return with "
            '@vramcast.rule("namespace::op").'
        )
    elif needs_a_card:
        remedy += (
            "\nA compiled extension looked at the tensor itself. Wrap the call in torch.library.custom_op and teach "
            'vramcast what it returns with @vramcast.rule("namespace::op").'
        )
    elif older := next((older for pattern, older in _WRITTEN_FOR.items() if pattern.search(text)), ""):
        ends_on_a_card = True
        remedy += (
            f"\nThe script was written for {older} and would end here on a card, too: run it where that is "
            "installed, or change that line."
        )
    elif _NO_FLASH_ATTENTION.search(text):
        remedy += hint("flash-attn")
    elif elsewhere := modules_elsewhere.remedy(error, path):
        ends_on_a_card = True
        remedy += elsewhere
    elif not is_ours and (packages := wanted_otherwise(error)):
        ends_on_a_card = True
        remedy += (
            f"\nThe script wants another version of what is installed here ({', '.join(packages)}), and would end "
            "here on a card, too: its README or requirements.txt may say which."
        )
    elif missing := absent(error, sys.executable):
        ends_on_a_card = True
        remedy += missing
    elif _MIXED_REDUCTIONS.search(text):
        remedy += (
            "\nA defect of this torch's compiler (pytorch/pytorch issue 178080), which a card meets, too: set "
            "TORCHINDUCTOR_MIX_ORDER_REDUCTION to 0, here and there."
        )
    elif _NO_NETWORK.search(text):
        ends_on_a_card = True
        remedy += "\nThe script downloads something, and there is no network here: get it before, where there is one."
        remedy += MADE_UP_DATA
    elif _NO_DATA_SET.search(text):
        ends_on_a_card = True
        remedy += MADE_UP_DATA
    elif _NO_DERIVATIVE.search(text):
        ends_on_a_card = True
    elif _OF_STRIDES.search(text):
        ends_on_a_card = True
        remedy += (
            "\nThat follows from sizes and strides, not from values, so that the script would end here on a card, too. "
            "A comparison keeps the strides of what is compared, which it did not in old versions of PyTorch."
        )
    elif not is_ours and not remedy and (absent_file := missing_files.missing(error)):
        ends_on_a_card = True
        remedy += absent_file
    elif beyond := _BEYOND_THE_CARDS.search(text):
        cards = int(beyond[1]) + 1
        remedy += f"\nFor a machine with {cards} cards: `vramcast run --gpus {cards} --one-process ...`."
    elif several := _SEVERAL_WANTED.search(text):
        cards = len(several[1].split(","))
        remedy += f"\nFor a machine with {cards} cards: `vramcast run --gpus {cards} ...`."
    elif isinstance(error, EOFError) and "reading a line" in text:
        remedy += "\nThe script asks for input: `echo ANSWER | vramcast run ...` gives it."
    elif isinstance(error, NameError) and "get_ipython" in text:
        remedy += "\nThat line is of IPython: leave it out, or run the notebook itself (vramcast run train.ipynb)."
    return Failure(reason_of(error), where_in(error, path), is_ours, remedy, needs_a_card, ends_on_a_card)


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
        return not type(error).__module__.startswith(_OWN_KERNELS)
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

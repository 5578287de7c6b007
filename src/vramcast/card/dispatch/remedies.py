"""What to do about an error that ended the user's code, by what it says: one rule a kind, the first that holds."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

from vramcast.card.dispatch import missing_files, modules_elsewhere
from vramcast.card.dispatch.missing_files import MADE_UP_DATA
from vramcast.card.dispatch.other_versions import wanted_otherwise
from vramcast.card.stand_ins.known import absent, hint

OWN_KERNELS = ("cupy", "numba", "pycuda")
"""Packages that compile and launch kernels of their own, past torch. Their errors bear their names."""


@dataclass(frozen=True, slots=True)
class Failing:
    """An error, and what is known of it."""

    error: BaseException
    text: str
    path: str
    """The script."""
    is_ours: bool
    is_of_driver: bool
    """The driver of this computer raised it, which a call has reached."""
    touches_files: bool
    """What is to be done about files was said already."""


@dataclass(frozen=True, slots=True)
class Remedy:
    text: str = ""
    """In lines of its own."""
    ends_on_a_card: bool = True
    """It comes of what is installed or missing, so that no value that was assumed has to do with it."""
    needs_a_card: bool = False
    """Compiled code was to run that only a real card can run."""


def remedy_of(failing: Failing) -> Remedy:
    return next((remedy for rule in _RULES if (remedy := rule(failing))), Remedy(ends_on_a_card=False))


_COMPILED_HERE = ("Error building extension", "CUDA_HOME environment variable is not set", "CUDA_HOME does not exist")


def _compiled_extension(failing: Failing) -> Remedy | None:
    if not any(phrase in failing.text for phrase in _COMPILED_HERE):
        return None
    return Remedy(
        "\nA CUDA extension is compiled here, which a virtual card could not run: leave it out (many programs have "
        "an option for PyTorch's own operators), or wrap its calls in torch.library.custom_op and teach vramcast "
        'what they return with @vramcast.rule("namespace::op").',
        ends_on_a_card=False, needs_a_card=not failing.is_ours,
    )  # fmt: skip


def _kernels_past_torch(failing: Failing) -> Remedy | None:
    launcher = type(failing.error).__module__.partition(".")[0].partition("_")[0]
    if launcher not in OWN_KERNELS or not failing.is_of_driver:
        return None
    return Remedy(
        f"\n{launcher} launches kernels of its own, past PyTorch, which a virtual card cannot run: leave them out, "
        "or wrap their calls in torch.library.custom_op and teach vramcast what they return with "
        '@vramcast.rule("namespace::op").',
        ends_on_a_card=False, needs_a_card=True,
    )  # fmt: skip


_NEEDS_REAL_CUDA = ("must be a CUDA tensor", "must be on CUDA", "to be a CUDA tensor", "expected a CUDA tensor")


def _extension_looks_at_a_tensor(failing: Failing) -> Remedy | None:
    if failing.is_ours or not any(phrase in failing.text for phrase in _NEEDS_REAL_CUDA):
        return None
    return Remedy(
        "\nA compiled extension looked at the tensor itself. Wrap the call in torch.library.custom_op and teach "
        'vramcast what it returns with @vramcast.rule("namespace::op").',
        ends_on_a_card=False, needs_a_card=True,
    )  # fmt: skip


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


def _written_for_an_older_version(failing: Failing) -> Remedy | None:
    older = next((older for pattern, older in _WRITTEN_FOR.items() if pattern.search(failing.text)), "")
    if not older:
        return None
    return Remedy(
        f"\nThe script was written for {older} and would end here on a card, too: run it where that is "
        "installed, or change that line."
    )


_NO_FLASH_ATTENTION = re.compile(r"`kernels` is either not installed\b")
"""What transformers says where flash-attn was asked for and is not here: it would load a built one from the hub."""


def _flash_attention_from_the_hub(failing: Failing) -> Remedy | None:
    found = _NO_FLASH_ATTENTION.search(failing.text)
    return Remedy(hint("flash-attn"), ends_on_a_card=False) if found else None


def _module_in_another_folder(failing: Failing) -> Remedy | None:
    found = modules_elsewhere.remedy(failing.error, failing.path)
    return Remedy(found) if found else None


def _another_version_of_a_package(failing: Failing) -> Remedy | None:
    packages = [] if failing.is_ours else wanted_otherwise(failing.error)
    if not packages:
        return None
    return Remedy(
        f"\nThe script wants another version of what is installed here ({', '.join(packages)}), and would end "
        "here on a card, too: its README or requirements.txt may say which."
    )


def _absent_package(failing: Failing) -> Remedy | None:
    found = absent(failing.error, sys.executable)
    return Remedy(found) if found else None


_BY_THEIR_WORDS = {
    re.compile(r"CompiledFunctionBackward returned an invalid gradient at index \d+ - got \[\d+\]"): Remedy(
        "\nA defect of this torch's compiler (pytorch/pytorch issue 178080), which a card meets, too: set "
        "TORCHINDUCTOR_MIX_ORDER_REDUCTION to 0, here and there.",
        ends_on_a_card=False,
    ),  # a gradient of shape [C] for a parameter of shape [1, C, 1, 1], in torch 2.10 and 2.11
    re.compile(
        r"Name or service not known|Temporary failure in name resolution|Network is unreachable"
        r"|\bcouldn't connect to 'https?:|\boffline mode is enabled|cannot find the requested files in the local cache",
        re.IGNORECASE,
    ): Remedy(
        "\nThe script downloads something, and there is no network here: get it before, where there is one."
        + MADE_UP_DATA
    ),
    re.compile(r"\bDataset not found\b", re.IGNORECASE): Remedy(MADE_UP_DATA),
    re.compile(r"\bderivative for aten::\w+ is not implemented"): Remedy(),
    re.compile(r"view size is not compatible with input tensor's size and stride"): Remedy(
        "\nThat follows from sizes and strides, not from values, so that the script would end here on a card, too. "
        "A comparison keeps the strides of what is compared, which it did not in old versions of PyTorch."
    ),
}


def _by_its_words(failing: Failing) -> Remedy | None:
    return next((remedy for pattern, remedy in _BY_THEIR_WORDS.items() if pattern.search(failing.text)), None)


def _missing_file(failing: Failing) -> Remedy | None:
    found = "" if failing.is_ours or failing.touches_files else missing_files.missing(failing.error)
    return Remedy(found) if found else None


_BEYOND_THE_CARDS = re.compile(r"invalid device ordinal \(cuda:(\d{1,3})\)")

_SEVERAL_WANTED = re.compile(r"You requested gpu: \[([\d, ]+)\]")
"""What Lightning and Fabric say where there are fewer cards than `devices`."""


def _more_cards(failing: Failing) -> Remedy | None:
    if beyond := _BEYOND_THE_CARDS.search(failing.text):
        cards = int(beyond[1]) + 1
        told = f"\nFor a machine with {cards} cards: `vramcast run --gpus {cards} --one-process ...`."
        return Remedy(told, ends_on_a_card=False)
    if several := _SEVERAL_WANTED.search(failing.text):
        cards = len(several[1].split(","))
        told = f"\nFor a machine with {cards} cards: `vramcast run --gpus {cards} ...`."
        return Remedy(told, ends_on_a_card=False)
    return None


def _input_and_notebooks(failing: Failing) -> Remedy | None:
    told = ""
    if isinstance(failing.error, EOFError) and "reading a line" in failing.text:
        told = "\nThe script asks for input: `echo ANSWER | vramcast run ...` gives it."
    elif isinstance(failing.error, NameError) and "get_ipython" in failing.text:
        told = "\nThat line is of IPython: leave it out, or run the notebook itself (vramcast run train.ipynb)."
    return Remedy(told, ends_on_a_card=False) if told else None


_WORKER_OF_A_LOADER = re.compile(r"\bin DataLoader worker process\b")


def _in_a_worker_of_a_loader(failing: Failing) -> Remedy | None:
    if failing.is_ours or not _WORKER_OF_A_LOADER.search(failing.text):
        return None
    return Remedy("\nA worker of the data loader failed, which uses no card: it would fail on a machine with one, too.")


_RULES: tuple[Callable[[Failing], Remedy | None], ...] = (
    _compiled_extension,
    _kernels_past_torch,
    _extension_looks_at_a_tensor,
    _written_for_an_older_version,
    _flash_attention_from_the_hub,
    _module_in_another_folder,
    _another_version_of_a_package,
    _absent_package,
    _by_its_words,
    _missing_file,
    _more_cards,
    _input_and_notebooks,
    _in_a_worker_of_a_loader,
)

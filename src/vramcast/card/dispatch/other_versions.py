"""Errors that come of another version of an installed package than the script was written for.

Such a script ends on a card, too, and no value that vramcast assumed has to do with it.
"""

from __future__ import annotations

import importlib.metadata
import linecache
import re
import sys
import traceback
from collections.abc import Callable
from types import FrameType, ModuleType

_NO_SUCH_NAME = re.compile(r"\bcannot import name\b|^No module named '\w+\.")

_CALLED_WITH = re.compile(
    r"^(?:TypeError: )?([\w.]+)\(\) (?:got an unexpected keyword|takes \d+|takes from|missing \d+ required)",
    re.MULTILINE,
)
"""The TypeError that Python raises where arguments do not suit a function, which it names."""

_NO_LONGER_TAKEN = "object.__init__() takes exactly one argument"
"""The TypeError for `super().__init__(x)` where the base class has no __init__ any more, as torch's Sampler."""

_OF_A_MODULE = re.compile(r"^AttributeError: module '([\w.]+)' has no attribute", re.MULTILINE)
"""In the error of a loader's worker: its text alone has come to this process."""

_LINE_IN = re.compile(r'^ *File "([^"]+)", line \d+, in .*\n *(.+)$', re.MULTILINE)
"""A file and its line of code, in the text of a traceback."""

_PYTHON = f"Python {sys.version_info.major}.{sys.version_info.minor}"

_VERSION_OF = re.compile(r"\b(\w+)\.__version__")


def wanted_otherwise(error: BaseException) -> list[str]:
    """The packages, with their versions, of which the script wants another one; none where that is not the cause."""
    if isinstance(error, ImportError):
        return _installed(error.name) if error.name and _NO_SUCH_NAME.search(str(error)) else []
    if isinstance(error, AttributeError):
        from_worker = _OF_A_MODULE.search(str(error)) if error.obj is None else None
        return _installed(from_worker[1]) if from_worker else _owner_of(error.obj)
    if isinstance(error, TypeError) and str(error).startswith(_NO_LONGER_TAKEN):
        return _base_of_the_caller(error)
    if isinstance(error, TypeError) and (called := _CALLED_WITH.search(str(error))):
        function = _function_in_worker(called[1], str(error)) or _function_named(called[1], error)
        return [each for each in _installed(function.__module__) if each != _PYTHON] if function else []
    if isinstance(error, AssertionError):
        return [each for name in _VERSION_OF.findall(failed_assert(error)) for each in _installed(name)]
    return []


def _owner_of(owner: object) -> list[str]:
    """Of a name that a module, a class or an object does not have. An object of torch's or of Python's own may lack it
    for other reasons."""
    if isinstance(owner, ModuleType):
        return _installed(owner.__name__)
    if isinstance(owner, type):
        return _installed(owner.__module__)
    name = type(owner).__module__
    package = name.split(".")[0]
    return [] if package in {"torch", "__main__", *sys.stdlib_module_names} else _installed(name)


def failed_assert(error: BaseException) -> str:
    """The line of an assert without words of its own."""
    trace = error.__traceback__
    if not isinstance(error, AssertionError) or trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    line = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno).strip()
    return line if line.startswith("assert") else ""


def _base_of_the_caller(error: BaseException) -> list[str]:
    """The first base class from an installed package, of the object whose method failed."""
    frame = _innermost_frame(error)
    caller = frame.f_locals.get("self") if frame is not None else None
    bases = [] if caller is None else type(caller).__mro__[1:-1]
    return next((found for base in bases if (found := _installed(base.__module__))), [])


def _innermost_frame(error: BaseException) -> FrameType | None:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return None if trace is None else trace.tb_frame


def _function_named(qualified: str, error: BaseException) -> Callable[..., object] | None:
    """The function, or the class of the method, by that name among what a failing function names (`f`, `module.f`) and
    the classes of its object (`super().__init__`); a decorator (torch.no_grad) may stand between the two."""
    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        others = [*frame.f_locals.values(), *type(frame.f_locals.get("self")).__mro__]
        found = _among(frame.f_code.co_names, frame.f_globals, qualified, others) or found
    return found


def _function_in_worker(qualified: str, text: str) -> Callable[..., object] | None:
    """The same where a loader's worker failed, of which the text alone has come: its last line of code names it."""
    lines = _LINE_IN.findall(text)
    if not lines:
        return None
    filename, code = lines[-1]
    owners = [module for module in list(sys.modules.values()) if getattr(module, "__file__", None) == filename]
    return _among(tuple(re.findall(r"\w+", code)), vars(owners[0]), qualified, []) if owners else None


def _among(
    names: tuple[str, ...], known: dict[str, object], qualified: str, others: list[object]
) -> Callable[..., object] | None:
    """What is called `qualified` among `names` in a module's names, in modules that they name, and `others`."""
    wanted = qualified.removesuffix(".__init__")
    values = [known[name] for name in names if name in known]
    values += [each for each in others if isinstance(each, type)]
    for value in values:  # grows by what is named in its modules
        if isinstance(value, ModuleType):
            inside = [vars(value)[name] for name in names if name in vars(value)]
            values += [each for each in inside if not any(each is known for known in values)]
        elif callable(value) and getattr(value, "__qualname__", None) == wanted:
            return value if isinstance(getattr(value, "__module__", None), str) else None
        elif isinstance(value, type):
            method: Callable[..., object] | None = vars(value).get(wanted.rpartition(".")[2])
            if callable(method) and getattr(method, "__qualname__", None) == wanted:
                return method
    return None


def _installed(module: str) -> list[str]:
    """The distribution that the module belongs to, with its version; nothing for a file of the script's own, nor for
    what stands in torch's place here."""
    package = module.split(".")[0]
    if package == "vramcast":
        return []
    if package in sys.stdlib_module_names:
        return [_PYTHON]
    names = importlib.metadata.packages_distributions().get(package, [package])
    for name in names:
        try:
            return [f"{name} {importlib.metadata.version(name)}"]
        except importlib.metadata.PackageNotFoundError:
            continue
    return []

"""Python imports this file as it starts: each patch of VRAMCAST_ZOO_PATCHES changes a module once that is imported."""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Patch = Callable[[ModuleType], None]


def checksums(module: ModuleType) -> None:
    """Generated data has other checksums than the original: a file that is there is taken as it is."""
    vars(module)["check_integrity"] = lambda path, md5=None: os.path.isfile(path)


def old_numpy(module: ModuleType) -> None:
    """Names that NumPy had before 2.0, for scripts that were written then."""
    old = {
        "Inf": "inf", "NaN": "nan", "bool8": "bool_", "cumproduct": "cumprod", "float_": "float64", "in1d": "isin",
        "product": "prod", "row_stack": "vstack",
    }  # fmt: skip
    for name, new in old.items():
        vars(module).setdefault(name, getattr(module, new))
    for name, kind in {"float": float, "int": int, "bool": bool, "object": object, "str": str}.items():
        vars(module).setdefault(name, kind)
    text = module.fromstring

    def fromstring(string: Any, dtype: Any = float, count: int = -1, *, sep: str = "", **options: Any) -> Any:
        if sep:
            return text(string, dtype, count, sep=sep, **options)
        return module.frombuffer(string, dtype, count).copy()

    vars(module)["fromstring"] = fromstring


def home_datasets(module: ModuleType) -> None:
    """Data sets that a script looks for in /datasets are in its home folder."""
    original = module.VisionDataset.__init__

    def init(self: Any, root: Any = None, *arguments: Any, **options: Any) -> None:
        if str(root).startswith("/datasets"):
            root = os.path.expanduser("~") + str(root)
        original(self, root, *arguments, **options)

    module.VisionDataset.__init__ = init


def old_loader(module: ModuleType) -> None:
    """Until 1.13 the iterators of loaders had the method `next` of Python 2."""
    module._BaseDataLoaderIter.next = module._BaseDataLoaderIter.__next__


def old_make_grid(module: ModuleType) -> None:
    """Until 0.13 the range of values was called `range`."""
    original = module.make_grid

    def make_grid(*arguments: Any, **options: Any) -> Any:
        if "range" in options:
            options["value_range"] = options.pop("range")
        return original(*arguments, **options)

    vars(module)["make_grid"] = make_grid


def old_pillow(module: ModuleType) -> None:
    """A name that Pillow had until 9."""
    vars(module).setdefault("ANTIALIAS", module.Resampling.LANCZOS)


def old_sampler(module: ModuleType) -> None:
    """Samplers took the data that they are for, and did nothing with it."""
    module.Sampler.__init__ = lambda self, data_source=None: None


def old_torch_six(module: ModuleType) -> None:
    """torch._six, which was there until 1.13."""
    import collections.abc
    import math

    six = ModuleType("torch._six")
    vars(six).update(container_abcs=collections.abc, inf=math.inf, int_classes=int, string_classes=(str, bytes))
    sys.modules[six.__name__] = six


def old_plateau(module: ModuleType) -> None:
    """Until 2.7 the schedule that waits for a plateau took `verbose`."""
    original = module.ReduceLROnPlateau.__init__

    def init(self: Any, *arguments: Any, **options: Any) -> None:
        options.pop("verbose", None)
        original(self, *arguments, **options)

    module.ReduceLROnPlateau.__init__ = init


def old_torchvision(module: ModuleType) -> None:
    """Names that torchvision's transforms had until 0.13."""
    vars(module).setdefault("Scale", module.Resize)


def old_yaml(module: ModuleType) -> None:
    """Until PyYAML 6, load_all chose a loader itself."""
    original = module.load_all
    vars(module)["load_all"] = lambda stream, Loader=module.FullLoader: original(stream, Loader)


def opacus_seed(module: ModuleType) -> None:
    """Opacus draws the size of each batch at random, and its examples set no seed: with one, two runs are alike."""
    import torch

    torch.manual_seed(0)


_PATCHES: dict[str, tuple[str, Patch]] = {
    "checksums": ("torchvision.datasets.utils", checksums),
    "home_datasets": ("torchvision.datasets.vision", home_datasets),
    "old_loader": ("torch.utils.data.dataloader", old_loader),
    "old_make_grid": ("torchvision.utils", old_make_grid),
    "old_numpy": ("numpy", old_numpy),
    "old_pillow": ("PIL.Image", old_pillow),
    "old_plateau": ("torch.optim.lr_scheduler", old_plateau),
    "old_sampler": ("torch.utils.data.sampler", old_sampler),
    "old_torch_six": ("torch", old_torch_six),
    "old_yaml": ("yaml", old_yaml),
    "opacus_seed": ("opacus.data_loader", opacus_seed),
    "old_torchvision": ("torchvision.transforms.transforms", old_torchvision),
}


class _Loader(importlib.abc.Loader):
    def __init__(self, real: Any, patch: Patch) -> None:
        self._real = real
        self._patch = patch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._real.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        self._patch(module)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, patch: Patch) -> None:
        self._name = name
        self._patch = patch

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._patch)
        return spec


for _name in filter(None, os.environ.get("VRAMCAST_ZOO_PATCHES", "").split(",")):
    sys.meta_path.insert(0, _Finder(*_PATCHES[_name]))

"""What the compilers are spared does not change their answers."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import pprint
import random
import sys
import traceback
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import pytest
import sympy  # type: ignore[import-untyped]
import torch
from torch._library import utils as library

from vramcast.card.compiled import fake_cache, shortcuts, static_sizes
from vramcast.card.compiled.compiler import why_not
from vramcast.card.compiled.quick_imports import quick_imports, quick_registrations
from vramcast.card.device.patches import Patches

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.fixture
def put() -> Iterator[Patches]:
    patches = Patches()
    yield patches
    patches.undo()


def drawn_sizes(seed: int) -> tuple[list[Any], list[Any]]:
    """Sizes and strides, as Python's numbers or as sympy's."""
    draw = random.Random(seed)
    sizes = [draw.choice([0, 1, 2, 3, 8]) for _ in range(draw.randint(0, 4))]
    strides = list(torch.empty(sizes, device="meta").stride())
    if strides and draw.random() < 0.5:
        strides[draw.randrange(len(strides))] = draw.choice([0, 1, 5])
    return [draw.choice([int, sympy.Integer])(n) for n in sizes], [
        draw.choice([int, sympy.Integer])(n) for n in strides
    ]


def test_sizes_that_are_numbers(put: Patches) -> None:
    from torch._inductor import ir, sizevars, utils
    from torch._inductor.sizevars import SizeVarAllocator
    from torch._inductor.virtualized import V
    from torch.utils._sympy.functions import FloorDiv, ModularIndexing

    x, y = (utils.sympy_index_symbol(name) for name in ("x0", "x1"))
    numbers = [0, 1, 7, 12, sympy.Integer(0), sympy.Integer(1), sympy.Integer(6), sympy.Integer(12), x, 3 * x]
    expressions = [*numbers, (x + 2) * 3 - 3 * x, 4 * (x + y)]
    indices = [FloorDiv(64 * x + y, 64), ModularIndexing(x, 1, 64), 64 * FloorDiv(x, 64) + x % 64]
    joined = [
        ModularIndexing(x, 1, 64) + y, ModularIndexing(x, 1, 32) + 32 * ModularIndexing(x, 32, 4),
        ModularIndexing(x, 1, 32) + 32 * FloorDiv(x, 32), 4 * ModularIndexing(x, 2, 8) + 32 * ModularIndexing(x, 16, 2),
    ]  # fmt: skip

    def answers() -> list[Any]:
        allocator = SizeVarAllocator()
        found: list[Any] = [
            getattr(allocator, name)(sympy.sympify(a), b) for name in static_sizes._COMPARISONS for a in numbers
            for b in numbers if not name.endswith("multiple_of") or b != 0
        ]  # fmt: skip
        found += [(each, type(each)) for each in map(allocator.simplify, expressions)]
        found += map(sizevars.join_dimensions, joined)
        for ranges in ({x: 8, y: 4}, {x: 128, y: 64}):
            found += [allocator.simplify_with_ranges(index, ranges) for index in indices]
        sizes, reindex, prune = allocator._simplify_loops([x, y], [8, 4], [4 * x + y])
        found += [sizes, reindex([x]), prune([x, y])]
        for new in (0, sympy.Integer(0), 5, y, "x7"):
            found += [
                (each, type(each)) for each in (utils.sympy_subs(2 * x + 1, {x: new}), utils.sympy_subs(x, {x: new}))
            ]
        with V.set_graph_handler(type("Graph", (), {"sizevars": allocator})()):
            found += [ir.is_contiguous_strides_for_shape(*reversed(drawn_sizes(seed))) for seed in range(60)]
        return found

    before = answers()
    static_sizes.install(put)
    assert answers() == before == answers()


def test_no_units_are_imported_to_simplify_a_size(put: Patches) -> None:
    x = sympy.Symbol("x", integer=True)
    before = sympy.simplify((4 * x + 8) / 4)
    shortcuts._units(put)
    there = {name: module for name, module in sys.modules.items() if name.startswith("sympy.physics")}
    for name in there:
        del sys.modules[name]
    try:
        assert sympy.simplify((4 * x + 8) / 4) == before
        assert not [name for name in sys.modules if name.startswith("sympy.physics")]
    finally:
        sys.modules.update(there)


def test_where_an_op_is_registered_is_said_by_the_frame() -> None:
    source = functools.partial(library.get_source, 1)
    with quick_registrations():
        quick = functools.partial(library.get_source, 1)
    assert quick() == source()
    assert quick.func is not source.func


def test_a_template_is_compiled_when_it_is_rendered() -> None:
    with quick_imports():
        from torch._dynamo import convert_frame  # noqa: F401
    with quick_imports():
        from torch._inductor.codegen.common import KernelTemplate

        template = KernelTemplate._template_from_string("{{ number }} blocks")
    assert template.render(number=4) == "4 blocks" == KernelTemplate._template_from_string("4 blocks").render()


def test_methods_of_the_compilers_dataclasses_are_made_when_they_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("torch._inductor.made_up")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with quick_imports():
        exec(
            "import dataclasses\n"
            "@dataclasses.dataclass(frozen=True, order=True)\nclass Size:\n    n: int\n    unit: str = 'B'\n"
            "@dataclasses.dataclass\nclass Counter:\n    n: int = 2\n",
            vars(module),
        )
    size, counter = vars(module)["Size"], vars(module)["Counter"]
    assert not isinstance(vars(size)["__init__"], FunctionType)
    assert size(3) == size(3) and size(2) < size(3) and len({size(3), size(3), size(4)}) == 2
    assert isinstance(vars(size)["__init__"], FunctionType) and size.__init__.__qualname__ == "Size.__init__"
    assert repr(size(3)) == pprint.pformat(size(3)) == "Size(n=3, unit='B')"
    assert pprint.pformat(size(3, "B" * 80)).count("\n") == 1
    assert list(inspect.signature(counter).parameters) == ["n"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        size(3).n = 4
    smaller = type("Smaller", (counter,), {})
    assert smaller().n == 2 and "__init__" not in vars(smaller)


def test_keys_of_fake_tensors_differ_where_torch_s_do(put: Patches) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode, _CacheKeyState

    with FakeTensorMode() as mode:
        x = torch.empty(4, 6)
        tensors = [
            x, torch.empty(4, 6), x.t(), x[:2], x[1:3], x.double(), torch.empty(4, 6, requires_grad=True),
            torch.empty(4, 6, dtype=torch.cfloat).conj(), torch.empty(24)[:24].view(4, 6),
            torch.empty(48)[:24].view(4, 6),
            torch.empty(1, 4, 6, 6), torch.empty(1, 4, 6, 6).to(memory_format=torch.channels_last),
        ]  # fmt: skip
        asked: list[tuple[Any, dict[str, Any]]] = [((tensor, 1), {}) for tensor in tensors]
        asked += [((x, n), {}) for n in (1.0, True, "1", None, [1], (1,), [1, 1], [[1], 1], torch.float32)]
        asked += [((x,), {"dim": 1}), ((x,), {"keepdim": 1}), ((x,), {"dim": [x, x]}), (([x], x), {}), (([x, x],), {})]

        def same() -> list[bool]:
            keys = [mode._cache_key(_CacheKeyState(None), torch.ops.aten.add.Tensor, *each) for each in asked]
            return [a == b for a in keys for b in keys]

        before = same()
        fake_cache.install(put)
        assert same() == before and sum(before) < len(before) / 2


def test_settings_are_what_they_are(put: Patches) -> None:
    from torch._inductor import config

    names = [name for name in config._config if "." not in name]
    before = [getattr(config, name) for name in names]
    shortcuts._settings(put)
    assert [getattr(config, name) for name in names] == before
    with config.patch({"max_fusion_size": 7, "triton.unique_kernel_names": False}):
        assert (config.max_fusion_size, config.triton.unique_kernel_names) == (7, False)
    assert config.max_fusion_size != 7
    config.pre_grad_fusion_options["tried"] = {}  # a table that a program may write into
    assert "tried" in config.pre_grad_fusion_options
    del config.pre_grad_fusion_options["tried"]
    with pytest.raises(AttributeError):
        config.no_such_setting  # noqa: B018


def test_bounds_of_an_index(put: Patches) -> None:
    from torch._inductor import bounds as module
    from torch._inductor import utils
    from torch._inductor.sizevars import SizeVarAllocator
    from torch._inductor.virtualized import V
    from torch.utils._sympy.value_ranges import ValueRanges

    bounds: Any = module
    x, y = (utils.sympy_index_symbol(name) for name in ("x0", "x1"))
    asked = [(3 * x + y, {x: ValueRanges(0, 7), y: ValueRanges(0, 2)}), (3 * x + y, {x: ValueRanges(0, 9)}), (x, {})]
    before = [bounds.bound_sympy(*each) for each in asked]
    shortcuts._bounds(put)
    with V.set_graph_handler(type("Graph", (), {"sizevars": SizeVarAllocator()})()):
        for _ in range(2):
            assert [bounds.bound_sympy(*each) for each in asked] == before


def test_lines_of_the_program_are_put_into_words_as_python_does() -> None:
    stack = traceback.extract_stack()
    for _ in range(2):
        assert shortcuts._Lines.from_list(stack).format() == traceback.StackSummary.from_list(stack).format()

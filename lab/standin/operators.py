"""torch's own samples of every operator: what its CUDA code allocates beside what the virtual card books.

    python -m lab.standin operators [--only cat ...] [--samples 3] [--size 2]

Two processes run the same calls, one on the stand-in for CUDA, one on the virtual card, and write down each allocation
and release between a call's begin and its end. Calls whose results differ in size depend on computed values, which the
stand-in does not have; they are left out and counted.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lab.standin.card import environment

_MARK = (1 << 22) + 512
"""An allocation of this many bytes stands between two calls in the allocator's history."""
BLOCK = 512
"""The allocator rounds each size up to a multiple of this."""
_DTYPES = ("float32", "bfloat16")
_LOOKED_AT = 16
"""Of so many samples the largest are taken."""
Call = dict[str, Any]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.standin operators", description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="operators whose name contains one of these")
    parser.add_argument("--samples", type=int, default=3, help="of each operator and type, the largest (default: 3)")
    parser.add_argument("--size", type=int, default=2, help="how many times torch's own sizes (default: 2)")
    parser.add_argument("--most", type=int, default=3, help="differences shown of each operator (default: 3)")
    parser.add_argument("--keep", type=Path, help="a folder for what both processes recorded")
    parser.add_argument("--record", choices=("card", "virtual"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.record:
        record = _on_card if given.record == "card" else _virtually
        with given.out.open("w") as file:
            for call in record(given):
                file.write(json.dumps(call) + "\n")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        theirs, mine = (_recorded(name, given.keep or Path(folder), arguments) for name in ("card", "virtual"))
    return _compare(theirs, mine, given.most)


def _recorded(which: str, folder: Path, arguments: list[str]) -> dict[str, Call]:
    out = folder / f"{which}.jsonl"
    command = [sys.executable, "-m", "lab.standin", "operators", *arguments, "--record", which, "--out", str(out)]
    subprocess.run(command, check=True, env=environment() if which == "card" else dict(os.environ))
    return {call["key"]: call for call in map(json.loads, out.read_text().splitlines())}


def _compare(theirs: dict[str, Call], mine: dict[str, Call], most: int) -> int:
    values, same = 0, 0
    found: dict[str, list[tuple[str, Call, Call]]] = defaultdict(list)
    for key, real in theirs.items():
        virtual = mine.get(key)
        if virtual is None or "error" in real:
            continue
        if "error" in virtual or real["results"] == virtual["results"]:
            if _height(real["events"]) == _height(virtual.get("events")):
                same += 1
            else:
                found[real["operator"]].append((key, real, virtual))
        else:
            values += 1
    for operator, rows in sorted(found.items()):
        print(f"{operator}: {len(rows)} calls")
        for key, real, virtual in rows[:most]:
            for name, call in ((key, {}), ("card", real), ("virtual", virtual)):
                print(f"  {name} {_height(call.get('events')) or ''} {call.get('events') or call.get('error', '')}")
    print(f"{same} calls take the same, {sum(map(len, found.values()))} of {len(found)} operators do not; "
          f"{values} give results of other sizes")  # fmt: skip
    return 1 if found else 0


def _height(events: list[int] | None) -> tuple[int, int] | None:
    """What a call takes at most, and what is left of it at its end."""
    if events is None:
        return None
    level = most = 0
    for size in events:
        level += (-(-size // BLOCK) if size >= 0 else size // BLOCK) * BLOCK
        most = max(most, level)
    return most, level


def _chosen(given: argparse.Namespace) -> list[Any]:
    from lab.checking.check_ops import operators

    return [op for op in operators(larger=given.size) if not given.only or any(word in op.name for word in given.only)]


def _calls(op: Any, most: int) -> Iterator[tuple[str, str, Any, Callable[[Any], Any]]]:
    """Key, operator, sample and what is done with it, in the same order in both processes."""
    import torch

    from lab.checking.check_ops import _variants

    name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
    for dtype in (getattr(torch, dtype) for dtype in _DTYPES):
        if dtype not in op.dtypesIfCUDA:
            continue
        torch.manual_seed(0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                samples = sorted(itertools.islice(op.sample_inputs("cpu", dtype), _LOOKED_AT), key=_numbers)[-most:]
        except Exception:
            continue  # some samples want a library that is not here
        for number, sample in enumerate(samples):
            for variant, run in _variants(op, sample, dtype):
                if variant.startswith("out="):
                    continue
                yield f"{name} {variant} {str(dtype)[6:]} #{number} {_shapes(sample)}", name, sample, run


def _numbers(sample: Any) -> int:
    from lab.checking.check_ops import _tensors

    return sum(t.numel() for t in _tensors(sample))


def _shapes(sample: Any) -> str:
    from lab.checking.check_ops import _tensors

    return " ".join(str(list(t.shape)) for t in _tensors(sample))


def _run(sample: Any, run: Callable[[Any], Any], begin: Callable[[], None]) -> tuple[Any, str]:
    """The call's results, and what failed."""
    from lab.checking.check_ops import _moved

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            here = _moved(sample, "cuda")
            begin()
            return (run(here), here), ""
        except Exception as error:
            return None, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _warm_up() -> None:
    """What is allocated once: cuBLAS's workspaces, of the program's thread and of autograd's."""
    import torch

    for dtype in (torch.float32, torch.bfloat16):
        x = torch.zeros(64, 64, device="cuda", dtype=dtype, requires_grad=True)
        torch.nn.functional.linear(x, x, x[0]).sum().backward()


def _on_card(given: argparse.Namespace) -> Iterator[Call]:
    """Each operator in a process of its own: the stand-in may end a process that needs what a kernel computes."""
    for op in _chosen(given):
        with tempfile.TemporaryFile("w+") as file:
            child = os.fork()
            if child == 0:
                for call in _operator_on_card(op, given.samples):
                    file.write(json.dumps(call) + "\n")
                file.flush()
                os._exit(0)
            if os.waitpid(child, 0)[1]:
                print(f"standin: {op.name} ended the process", file=sys.stderr)
            file.seek(0)
            yield from map(json.loads, file.read().splitlines())


def _operator_on_card(op: Any, samples: int) -> Iterator[Call]:
    import torch

    from lab.checking.check_ops import _described

    torch.cuda._is_in_bad_fork = lambda: False  # no context of a card is lost in this fork
    _warm_up()
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=1_000_000)

    def mark() -> None:
        torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(_MARK))

    made: list[Call] = []
    gc.disable()
    for key, operator, sample, run in _calls(op, samples):
        began: list[int] = []

        def begin(began: list[int] = began) -> None:
            mark()
            began.append(1)

        out, error = _run(sample, run, begin)
        mark()
        call: Call = {"key": key, "operator": operator, "began": bool(began)}
        made.append(call | ({"error": error} if error else {"results": _described(out[0])}))
        del out
    torch.cuda.synchronize()
    yield from _cut(made, torch.cuda.memory._snapshot()["device_traces"][0])


def _cut(made: list[Call], entries: list[dict[str, Any]]) -> Iterator[Call]:
    """The allocator's history, cut into calls at the marks."""
    sizes = [e["size"] * (1 if e["action"] == "alloc" else -1)
             for e in entries if e["action"] in ("alloc", "free_completed")]  # fmt: skip
    places = [number for number, size in enumerate(sizes) if size == _MARK]
    position = 0
    for call in made:
        if call.pop("began"):
            first, last = places[position] + 2, places[position + 1]
            position += 2
            yield call | {"events": sizes[first:last]}
        else:
            position += 1
            yield call


def _virtually(given: argparse.Namespace) -> Iterator[Call]:
    import vramcast
    from lab.checking.check_ops import _described, _outside
    from lab.checking.compare_ops import booked_sizes

    with vramcast.virtual_gpu("h200") as gpu:
        gpu.note_ops(False)
        builder = gpu._ledger.builder
        _warm_up()
        gc.disable()
        calls = itertools.chain.from_iterable(_calls(op, given.samples) for op in _chosen(given))
        while True:
            with _outside():
                following = next(calls, None)
            if following is None:
                return
            key, operator, sample, run = following
            began: list[int] = []
            out, error = _run(sample, run, lambda began=began: began.append(builder.n_events))  # type: ignore[misc]
            call: Call = {"key": key, "operator": operator}
            if error:
                gpu._machine.unknown_kernels.clear()
                yield call | {"error": error}
                continue
            events = list(booked_sizes(builder, began[0], builder.n_events))
            yield call | {"results": _described(out[0]), "events": events}
            del out

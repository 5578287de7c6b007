"""Measure the corpus on the GPU of this machine: one process a workload, results in one file of JSON lines.

The parent imports the heavy libraries once and never touches CUDA; each workload runs in a fork of it, which
saves seconds of imports a workload. Run it from the repository root with src and the root on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import ast
import fcntl
import gzip
import importlib
import importlib.util
import json
import os
import re
import signal
import sys
import time
import traceback
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from lab import DATA, ROOT

GPU_BUDGET_GIB = 120
FREE_RUNNING_STEPS = 4
"""Steps in a row, after those with a wait between them, where times are measured."""
GIB = 1024**3
# What comes back from a remote machine is often limited by file: stay below 16 MiB each.
ARCHIVE_LIMIT_BYTES = 14 * 1024**2
# Importing bitsandbytes asks the card for its capability, which a parent of forks must not do.
IMPORTS_THAT_TOUCH_CUDA = {"bitsandbytes"}


@dataclass(frozen=True)
class Workload:
    name: str
    factory: str
    gib: float
    args: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        """What it needs and this machine has not: packages by name, environment variables in capitals."""
        return [n for n in self.needs if not (os.environ.get(n) if n.isupper() else importlib.util.find_spec(n))]


@dataclass
class Child:
    workload: Workload
    pid: int
    started: float
    attempt: int


def load_corpus(path: Path = DATA / "corpus.yaml") -> list[Workload]:
    return [Workload(**entry) for entry in yaml.safe_load(path.read_text())["workloads"]]


def load_everything() -> list[Workload]:
    """The corpus and the workloads drawn at random."""
    paths = (DATA / "corpus.yaml", *sorted(DATA.glob("drawn-*.yaml")))
    return [workload for path in paths for workload in load_corpus(path)]


def preload(workloads: list[Workload]) -> None:
    """Import in the parent what the factories import, with CUDA out of reach."""
    with _cuda_out_of_reach():
        for module in sorted({w.factory.partition(":")[0] for w in workloads}):
            for name in _imports_of(ROOT / (module.replace(".", "/") + ".py")):
                _import_quietly(name)
            importlib.import_module(module)
        for name in ("real_run", "op_record", "event_record"):
            importlib.import_module(f"vramcast.features.measure.{name}")


@contextmanager
def _cuda_out_of_reach() -> Iterator[None]:
    """What is imported finds the GPU of this machine, and cannot touch it; without one, it finds none.

    What libraries ask of the card when they are imported (torchao: its capability, and whether Triton works) is
    answered without it.
    """
    import torch
    import torch.utils._triton

    if not torch.backends.cuda.is_built():
        yield
        return
    capability = _capability()

    def refuse(*_: Any) -> None:
        raise RuntimeError("CUDA is out of reach while the parent imports")

    has_triton = importlib.util.find_spec("triton") is not None
    with ExitStack() as patches:
        for owner, name, value in (
            (torch._C, "_cuda_getDeviceCount", lambda: int(Path("/dev/nvidiactl").exists())),
            (torch.cuda, "_lazy_init", refuse),
            (torch.cuda, "get_device_capability", (lambda *_: capability) if capability else refuse),
            (torch.utils._triton, "has_triton", lambda: has_triton),
        ):
            patches.enter_context(mock.patch.object(owner, name, value))
        yield


def _capability() -> tuple[int, int] | None:
    """Compute capability of the first card, as NVML says; None where there is none, or it cannot be asked."""
    from vramcast.gpus.state import local_gpus

    card = next(iter(local_gpus()), None)
    return None if card is None else card.spec().compute_capability


def _imports_of(path: Path) -> list[str]:
    """ "module:name" for every import in the file, those inside functions included."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}:{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [f"{alias.name}:" for alias in node.names]
    return names


def _import_quietly(name: str) -> None:
    module, _, attribute = name.partition(":")
    if module.split(".")[0] in IMPORTS_THAT_TOUCH_CUDA | {"distutils"}:
        return
    try:
        imported = importlib.import_module(module)
        if attribute:
            getattr(imported, attribute, None)  # transformers and diffusers load a model's module on first use
    except Exception as error:  # a package that is absent is reported by the workload that needs it
        print(f"preload: {name}: {type(error).__name__}: {str(error)[:150]}", flush=True)


def forks_are_safe() -> bool:
    """Whether a child of this process may still initialise CUDA."""
    import torch

    pid = os.fork()
    if pid == 0:
        os._exit(int(torch.cuda._is_in_bad_fork()))
    return os.waitpid(pid, 0)[1] == 0


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def run_workload(workload: Workload, mode: str, parts: Path, threads: int, steps: int | None) -> None:
    """Runs in the child: measure, and leave the result in a file of the parts folder."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch

    from vramcast.base.factories import check_arguments, load_factory

    torch.set_num_threads(threads)
    result: dict[str, Any] = {
        "name": workload.name, "factory": workload.factory, "args": workload.args, "tags": workload.tags, "mode": mode
    }  # fmt: skip
    try:
        factory = load_factory(workload.factory)
        check_arguments(factory, workload.args)
        if mode == "ops":
            from vramcast.features.measure.op_record import compress_atlas, record_ops

            atlas = {"name": workload.name, "factory": workload.factory, "args": workload.args}
            atlas |= record_ops(factory, workload.args, steps=steps or 2)
            data = compress_atlas(atlas)
            (parts / f"{workload.name}.json.gz").write_bytes(data)
            result |= {k: atlas[k] for k in ("consistent", "peak_allocated_bytes", "peak_reserved_bytes")}
            result |= {"rows": len(atlas["rows"]), "calls": [len(s) for s in atlas["steps"]], "gz_bytes": len(data)}
        elif mode == "events":
            from vramcast.features.measure.event_record import record_events

            record = {"name": workload.name, "factory": workload.factory, "args": workload.args}
            record |= record_events(factory, workload.args, steps=steps or 3)
            data = gzip.compress(json.dumps(record, separators=(",", ":")).encode(), mtime=0)
            (parts / f"{workload.name}.json.gz").write_bytes(data)
            result |= {k: record[k] for k in ("consistent", "peak_allocated_bytes", "peak_reserved_bytes")}
            result |= {"events": len(record["events"]), "gz_bytes": len(data)}
        else:
            from vramcast.features.measure.real_run import measure_factory

            timing = mode in ("time", "op-times")
            profiled: dict[str, Any] = {}

            def then(step: Any, watcher: Any) -> None:
                from vramcast.features.measure.op_times import record_op_times

                profiled.update(record_op_times(step, watcher))

            run = measure_factory(
                factory, workload.args, steps=steps or (8 if timing else 6), warmup_steps=3 if timing else 2,
                free_running_steps=FREE_RUNNING_STEPS if timing else 0,
                **({"exclusive": lambda: file_lock(parts / "gpu.lock")} if timing else {}),
                then=then if mode == "op-times" else None,
                watch_host=timing,
            )  # fmt: skip
            result |= run.to_json()
            if profiled:
                (parts / f"{workload.name}.json.gz").write_bytes(
                    gzip.compress(
                        json.dumps({"name": workload.name, **profiled}, separators=(",", ":")).encode(), mtime=0
                    )
                )
    except BaseException as error:
        tail = traceback.format_exc()[-3000:]
        result |= {"error": f"{type(error).__name__}: {str(error)[:500]}", "traceback": tail}
    (parts / f"{workload.name}.json").write_text(json.dumps(result))


def start_child(workload: Workload, options: argparse.Namespace, parts: Path, fork: bool) -> int:
    """Fork, or start a fresh interpreter where the workload's imports must meet CUDA at once."""
    log = (parts / f"{workload.name}.log").open("w")
    threads = max(1, (os.cpu_count() or 4) // max(1, options.jobs))
    if fork and not IMPORTS_THAT_TOUCH_CUDA & set(workload.needs):
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            try:
                run_workload(workload, options.mode, parts, threads, options.steps)
            finally:
                # Tearing down CUDA and the imports takes time and can hang; the result is already on disk.
                sys.stdout.flush()
                os._exit(0)
        log.close()
        return pid
    command = [
        sys.executable, "-m", "lab.measuring.measure_corpus", "--child", workload.name, "--mode", options.mode,
        "--out", str(options.out), "--threads", str(threads), "--corpus", str(options.corpus),
    ] + (["--steps", str(options.steps)] if options.steps else [])  # fmt: skip
    pid = os.posix_spawn(
        command[0], command, os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, log.fileno(), 1), (os.POSIX_SPAWN_DUP2, log.fileno(), 2)],
        setsid=False,
    )  # fmt: skip
    log.close()
    return pid


class Archive:
    """Zip files of limited size: ops-1.zip, ops-2.zip, …"""

    def __init__(self, folder: Path, stem: str) -> None:
        self._folder, self._stem, self._number = folder, stem, 1

    def add(self, path: Path) -> None:
        target = self._folder / f"{self._stem}-{self._number}.zip"
        if target.exists() and target.stat().st_size + path.stat().st_size > ARCHIVE_LIMIT_BYTES:
            self._number += 1
            target = self._folder / f"{self._stem}-{self._number}.zip"
        with zipfile.ZipFile(target, "a", zipfile.ZIP_STORED) as archive:
            archive.write(path, path.name)
        path.unlink()


def collect(child: Child, parts: Path, why_dead: str) -> dict[str, Any]:
    part = parts / f"{child.workload.name}.json"
    if part.exists():
        result: dict[str, Any] = json.loads(part.read_text())
        part.unlink()
    else:
        log = parts / f"{child.workload.name}.log"
        tail = log.read_text(errors="replace")[-1500:] if log.exists() else ""
        result = {"name": child.workload.name, "factory": child.workload.factory, "args": child.workload.args}
        result |= {"tags": child.workload.tags, "error": why_dead or "the process died", "traceback": tail}
    result["child_seconds"] = round(time.monotonic() - child.started, 2)
    return result


def line_for(result: dict[str, Any], expected_gib: float) -> str:
    if "error" in result:
        return f"{result['name']:<34} ERROR {result['error'][:110]}"
    text = f"{result['name']:<34} alloc {result['peak_allocated_bytes'] / GIB:7.3f}  reserved "
    text += f"{result['peak_reserved_bytes'] / GIB:7.3f} GiB (guess {expected_gib:g})"
    if "step_seconds" in result:
        text += f"  step {result['step_seconds'] * 1e3:7.1f} ms  setup {result['setup_seconds']:.1f} s"
        end = result["driver"].get("end_bytes")
        text += f"  driver {end / GIB:.3f}" if end else "  driver ?"
        taken = result["extra"].get("optimizer_steps", 0)
        text += f"  ONLY {taken} OPTIMIZER STEPS" if taken < len(result["steps"]) else ""
    for key in ("rows", "calls", "events", "gz_bytes", "consistent", "num_alloc_retries"):
        if key in result and (result[key] or key == "consistent"):
            text += f"  {key} {result[key]}"
    return f"{text}  ({result['child_seconds']} s)"


def run_all(workloads: list[Workload], options: argparse.Namespace, fork: bool) -> list[dict[str, Any]]:
    out: Path = options.out
    parts = out / "parts"
    parts.mkdir(parents=True, exist_ok=True)
    archive = Archive(out, options.mode)
    deadline = time.monotonic() + options.deadline_seconds
    waiting = [(w, 1) for w in sorted(workloads, key=lambda w: -w.gib)]
    if options.in_order:
        waiting = [(w, 1) for w in workloads]
    running: dict[int, Child] = {}
    results: list[dict[str, Any]] = []

    def finish(child: Child, why_dead: str = "") -> None:
        result = collect(child, parts, why_dead)
        out_of_memory = "OutOfMemoryError" in result.get("error", "")
        if out_of_memory and child.attempt == 1 and options.jobs > 1:
            waiting.append((child.workload, 2))
            return
        binary = parts / f"{child.workload.name}.json.gz"
        if binary.exists():
            archive.add(binary)
        results.append(result)
        with (out / f"{options.mode}.jsonl").open("a") as handle:
            handle.write(json.dumps(result) + "\n")
        print(line_for(result, child.workload.gib), flush=True)

    while waiting or running:
        used = sum(c.workload.gib for c in running.values())
        for entry in list(waiting):
            workload, attempt = entry
            if len(running) >= options.jobs or time.monotonic() > deadline:
                break
            # A second attempt follows an out-of-memory error beside others: it has the card to itself.
            alone = attempt == 2 or any(c.attempt == 2 for c in running.values())
            if running and (alone or used + workload.gib > options.budget_gib):
                continue
            waiting.remove(entry)
            pid = start_child(workload, options, parts, fork)
            running[pid] = Child(workload, pid, time.monotonic(), attempt)
            used += workload.gib
        if not running:
            break
        for pid, child in list(running.items()):
            done, _ = os.waitpid(pid, os.WNOHANG)
            if done:
                del running[pid]
                finish(child)
            elif time.monotonic() - child.started > options.child_seconds:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                del running[pid]
                finish(child, f"stopped after {options.child_seconds} s")
        time.sleep(0.02)
    for workload, _ in waiting:
        print(f"{workload.name:<34} not started: deadline", flush=True)
    return results


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument("--only", default="", help="regular expression searched in names and tags")
    parser.add_argument("--skip", default="", help="regular expression: names and tags to leave out")
    parser.add_argument("--mode", choices=["memory", "time", "op-times", "ops", "events"], default="memory")
    parser.add_argument("--jobs", type=int, default=4, help="children at a time")
    parser.add_argument("--deadline-seconds", type=float, default=540, help="start no workload after this")
    parser.add_argument("--child-seconds", type=float, default=120, help="stop a workload after this")
    parser.add_argument("--budget-gib", type=float, default=GPU_BUDGET_GIB, help="sum of expected GiB at a time")
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--threads", type=int, default=4, help=argparse.SUPPRESS)
    parser.add_argument("--in-order", action="store_true", help="keep the file's order instead of largest first")
    parser.add_argument("--spawn", action="store_true", help="a fresh interpreter for every workload")
    parser.add_argument("--corpus", type=Path, default=DATA / "corpus.yaml")
    parser.add_argument("--list", action="store_true", help="print the workloads chosen and stop")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def choose(corpus: list[Workload], only: str, skip: str) -> list[Workload]:
    def matches(pattern: str, workload: Workload) -> bool:
        return any(re.search(pattern, text) for text in [workload.name, *workload.tags])

    return [w for w in corpus if matches(only, w) and not (skip and matches(skip, w))]


def main() -> int:
    options = parse()
    options.out = options.out.resolve()
    corpus = load_corpus(options.corpus)
    # Packages that a bare machine may lack, below those that it has.
    sys.path += [str(p / "fallback") for p in map(Path, sys.path) if (p / "fallback").is_dir()]
    if options.child:
        (workload,) = [w for w in corpus if w.name == options.child]
        run_workload(workload, options.mode, options.out / "parts", options.threads, options.steps)
        os._exit(0)
    chosen = choose(corpus, options.only, options.skip)
    if options.list:
        for w in chosen:
            print(f"{w.name:<34} {w.gib:6g} GiB  {w.factory}  {w.args}")
        print(f"{len(chosen)} workloads")
        return 0
    for w in chosen:
        if w.missing:
            print(f"{w.name:<34} left out: needs {', '.join(w.missing)}", flush=True)
    chosen = [w for w in chosen if not w.missing]
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    started = time.monotonic()
    fork = not options.spawn
    if fork:
        preload(chosen)
        fork = forks_are_safe()
    ready_seconds = time.monotonic() - started
    print(f"{len(chosen)} workloads, mode {options.mode}, ready in {ready_seconds:.1f} s, fork {fork}", flush=True)
    if options.mode in ("time", "op-times") and options.jobs > 1:
        print("time mode: set-up overlaps with others, the measured steps hold the card alone", flush=True)
    results = run_all(chosen, options, fork)
    failed = [r for r in results if "error" in r]
    for result in failed:
        print(f"\n--- {result['name']}: {result['error']}\n{result['traceback'][-900:]}")
    print(f"\n{len(results) - len(failed)} measured, {len(failed)} failed, {time.monotonic() - started:.0f} s")
    return 0 if not failed else 1


if __name__ == "__main__":
    sys.exit(main())

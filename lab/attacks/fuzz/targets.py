"""What is done with an input. Each function is given the folder that the files lie in; results are thrown away."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from lab import ROOT
from lab.attacks.fuzz.seeds import Seed

CONFIGS = ROOT / "tests" / "jobs" / "configs"
MODEL = str(CONFIGS / "llama-tiny")
_RUN_WHOLE = ("show", "compare", "diagnose", "gpus")
_OF_PYTHON = {
    "kair": "tests.jobs.lit:Clip", "gopro": "tests.jobs.lit:Clip", "diffsr": "tests.jobs.lit:UNet2d",
    "fno": "tests.jobs.lit:UNet2d",
}  # fmt: skip
_TINY = "tests.jobs.tiny:mixer"
_LARGEST_PREDICTED = 4096


def job(folder: Path, seed: Seed) -> None:
    from vramcast.jobs.editing.rewrite import rewrite
    from vramcast.jobs.load import load_job
    from vramcast.jobs.readers import Request

    if seed.main == "lightning.yaml":
        request = Request(parts=(str(CONFIGS / "lightning_inputs.yaml"),))
    else:
        model = next((name for word, name in _OF_PYTHON.items() if word in seed.main), MODEL)
        request = Request(model=None if "vramcast" in seed.main else model)
    rewrite(load_job(str(folder / seed.main), {}, request), {"sizes.batch": 3, "precision": "bf16"})


def folder(place: Path, seed: Seed) -> None:
    from vramcast.jobs.folders import check_sizes, read_json
    from vramcast.jobs.load import load_job
    from vramcast.jobs.stored_quantization import quantization_of
    from vramcast.jobs.template import job_template
    from vramcast.prediction.axes import axes

    loaded = load_job(str(place))
    axes(loaded.job)
    job_template(place, place / "vramcast.yaml")
    for name, component in loaded.job.components.items():
        quantization_of(name, component, "training")
    for path in place.rglob("config.json"):
        check_sizes(read_json(path), str(path))


def script(folder: Path, seed: Seed) -> None:
    from vramcast.jobs.template import job_template

    job_template(folder / seed.main, folder / "vramcast.yaml")


def trace(folder: Path, seed: Seed) -> None:
    path = str(folder / seed.main)
    _main(["show", path])
    _main(["show", path, "--json", "--gpu", "24GiB"])
    _main(["compare", path, path])


def log(folder: Path, seed: Seed) -> None:
    _main(["diagnose", str(folder / seed.main)])


def watch(folder: Path, seed: Seed) -> None:
    _main(["watch", "--replay", str(folder / seed.main)])


def calibration(folder: Path, seed: Seed) -> None:
    from vramcast.gpus import find_gpu
    from vramcast.timing.costs import Calibration, CostModel
    from vramcast.timing.costs.part import Part

    loaded = Calibration.load(folder / seed.main)
    if loaded.gpu == "h200":
        CostModel.for_gpu(find_gpu("h200"), loaded)
    for model in loaded.kinds.values():
        for base in (1e-9, 1e-3, 10.0):
            if not 0 <= model.seconds(Part(kind="gemm", base=base)) < float("inf"):
                raise Defect("a calibration that gives an impossible time")


def text(folder: Path, seed: Seed) -> None:
    from vramcast.allocator.conf import AllocatorConf
    from vramcast.base.units import parse_bytes
    from vramcast.cli.job_options import parse_change
    from vramcast.gpus import find_gpu
    from vramcast.jobs.expressions import check, evaluate
    from vramcast.jobs.load import load_job
    from vramcast.jobs.patterns import matches, matching_names
    from vramcast.jobs.readers import Request

    content = (folder / seed.main).read_bytes().decode("utf-8", errors="surrogateescape")
    sizes = {"batch": 4, "frames": 9, "width": 64, "height": 64}
    readers: tuple[Callable[[], Any], ...] = (
        lambda: parse_bytes(content), lambda: find_gpu(content), lambda: check(content), lambda: evaluate(content, sizes, "x"),
        lambda: AllocatorConf.parse(content), lambda: parse_change(content), lambda: load_job(f"./{content}"),
        lambda: matching_names(content, ["model.layers.0.self_attn.q_proj", "a" * 40], "x"),
        lambda: matches("model.layers.0.attn", [content]),
        lambda: load_job(None, {}, Request(model=MODEL, arguments=tuple(content.split()))),
        lambda: load_job(MODEL, dict([parse_change(content)])),
    )  # fmt: skip
    for reader in readers:
        _each(reader)


def mcp(folder: Path, seed: Seed) -> None:
    from pydantic import ValidationError

    from vramcast.base.access import Limits, limited
    from vramcast.mcp import answers
    from vramcast.mcp.inputs import JobInput

    try:
        asked = JobInput.model_validate_json((folder / seed.main).read_bytes())
    except ValidationError:
        return  # the server's own answer
    with limited(Limits(folder)):
        answers._load(folder, asked)


def command(folder: Path, seed: Seed) -> None:
    from vramcast.cli.main import make_parser, split_flags

    words = [word.replace("FILE", str(folder / seed.main)) for word in seed.words]
    if words and words[0] in _RUN_WHOLE and not any(word.startswith(("--job", "--ch", "--he")) for word in words):
        _main(words)
        return
    own, flags = split_flags(words)
    with _quietly():
        args = make_parser().parse_args(own)
    args.script_flags = flags
    _load_arguments(args)


def _load_arguments(args: Any) -> None:
    from vramcast.base.units import parse_bytes
    from vramcast.cli import job_options, options
    from vramcast.gpus import find_gpu

    with _quietly():
        for name in ("limit", "memory", "predicted"):
            value = getattr(args, name, None)
            if isinstance(value, str):
                _each(partial(parse_bytes, value))
        if getattr(args, "gpu", None):
            _each(lambda: find_gpu(args.gpu))
        if hasattr(args, "calibration"):
            _each(lambda: _entered(options.chosen_timing(args)))
        named = getattr(args, "job", None)
        if hasattr(args, "changes") and isinstance(named, str) and ":" not in named:
            args.model = None if args.model and ":" in args.model else args.model
            job_options.load(args)


def predict(folder: Path, seed: Seed) -> None:
    """A tiny job to the end, where its sizes stayed small."""
    from vramcast.jobs.folders import check_sizes, read_json
    from vramcast.jobs.load import load_job
    from vramcast.prediction.predict import predict as predict_job

    if seed.main == "config.json":
        config = read_json(folder / seed.main)
        check_sizes(config, "x")
        if any(isinstance(value, int) and value > _LARGEST_PREDICTED for value in config.values()):
            return
    loaded = load_job(str(folder if seed.main == "config.json" else folder / seed.main), {"sizes.batch": 2})
    job, part = loaded.job, loaded.job.components.get("model")
    if part is None or part.factory not in (None, _TINY) or job.script or job.step or part.trust_remote_code:
        return
    sizes = [*job.sizes.values(), *(value for value in part.arguments.values() if isinstance(value, int))]
    if any(size > _LARGEST_PREDICTED for size in (*sizes, 500 * job.accumulation, 500 * part.copies)):
        return
    with _quietly():
        predict_job(loaded, "rtx-4090")


class Defect(Exception):
    """Something that no input may bring about."""


def _entered(context: contextlib.AbstractContextManager[None]) -> None:
    with context:
        pass


def _each(reader: Callable[[], Any]) -> None:
    """Its own errors are answers; the next reader is asked all the same."""
    from vramcast.errors import VramcastError

    with contextlib.suppress(VramcastError):
        reader()


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _main(words: list[str]) -> None:
    from vramcast.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    if "Traceback (most recent call last)" in err.getvalue():
        raise Defect(err.getvalue())
    if code not in (0, 1, 2, 3):
        raise Defect(f"exit code {code}")
    if any(sign in out.getvalue() + err.getvalue() for sign in "\x1b\x07\x00"):
        raise Defect("an escape code is printed")


TARGETS: dict[str, tuple[Callable[[Path, Seed], None], float]] = {
    "job": (job, 30), "folder": (folder, 10), "script": (script, 5), "trace": (trace, 10), "log": (log, 15),
    "watch": (watch, 6), "calibration": (calibration, 4), "text": (text, 8), "mcp": (mcp, 4), "command": (command, 8),
    "predict": (predict, 0.05),
}  # fmt: skip
"""By name: the function, and how often of all."""

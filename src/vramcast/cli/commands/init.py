"""Write a commented vramcast.yaml for a model folder or a training script, to be changed to what you train.

A script is read, never run. Nothing that exists is overwritten. With --schema, write the JSON Schema that editors
complete the file with.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from vramcast.base.language import sentence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", type=Path, nargs="?", help="a model folder, or a training script")
    parser.add_argument(
        "--output", type=Path, default=Path("vramcast.yaml"), metavar="FILE", help="where to (%(default)s)"
    )
    parser.add_argument("--schema", type=Path, metavar="FILE", help="write the JSON Schema of job files here instead")


def execute(args: argparse.Namespace) -> int:
    from vramcast.base.errors import UsageError

    if args.schema is not None:
        from vramcast.jobs.json_schema import schema_text

        _write(args.schema, schema_text())
        return 0
    if args.source is None:
        raise UsageError("name a model folder or a training script: vramcast init ./my-model")
    from vramcast.jobs.template import job_template

    _write(args.output, job_template(args.source, args.output))
    return 0


def _write(path: Path, text: str) -> None:
    from vramcast.base.errors import UsageError
    from vramcast.base.outputs import write_file

    if path.exists() and not _is_empty(path):
        raise UsageError(f"{path} exists already and is left as it is; --output names another file")
    write_file(path, text.encode(), replace=_is_empty(path))
    print(sentence(f"wrote {path}"))


def _is_empty(path: Path) -> bool:
    """Whether the file is empty, so that nothing is lost by filling it; a full disk may have left it so."""
    return path.is_file() and path.stat().st_size == 0

"""Set jobs side by side against a card, or saved predictions and measurements line by line.

Jobs are what `vramcast predict` takes. JOB#NAME is a scenario of it: one that its file lists under `scenarios`, or
inference, training, offload, which every job has. One job alone is compared with all of its scenarios and with those
that --scenario adds, or, where it has none, as these three.

Saved results are traces (`--save`), predictions (`--json > FILE`) and measurements (`measure --save`). Differences are
from the first measurement or, if there is none, from the first of them. Jobs may stand among them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramcast.cli.job_options import add_job_options, load, parse_change
from vramcast.cli.options import (
    EXIT_FITS,
    REPORT,
    add_force_option,
    add_full_option,
    add_host_option,
    add_html_option,
    add_json_option,
    add_room_options,
    check_output,
    print_json,
    print_result,
    write_html,
)

if TYPE_CHECKING:
    from vramcast.features.compare.results import Result
    from vramcast.features.compare.scenarios import JobComparison
    from vramcast.features.compare.side_by_side import Comparison
    from vramcast.jobs.load import LoadedJob
    from vramcast.memory import Prediction


RUNS_CODE = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser)
    add_full_option(parser)
    add_html_option(parser)
    add_force_option(parser)
    parser.add_argument("files", nargs="+", metavar="JOB|FILE", help="jobs, scenarios (JOB#NAME) or saved results")
    jobs = parser.add_argument_group("for jobs")
    jobs.add_argument(
        "--scenario", action="append", default=[], metavar="NAME:CHANGES", dest="scenarios",
        help='a scenario of the first job, e.g. "lora: components.model.mode=lora sizes.batch=8"; may be repeated',
    )  # fmt: skip
    add_room_options(jobs)
    add_host_option(jobs)
    jobs.add_argument("--lines", action="store_true", help="line by line, as for saved results")
    add_job_options(parser)


def execute(args: argparse.Namespace) -> int:
    from vramcast.features.compare.results import is_result

    check_output(args.html, REPORT, force=args.force)
    saved = [is_result(Path(name)) for name in args.files]
    if any(saved):
        return _lines(args, saved)
    jobs = _jobs(args)
    result = _predict(args, jobs)
    if args.html is not None:
        from vramcast.report.html_comparison import comparison_report

        predictions = {name: one.prediction for name, one in result.predictions.items()}
        write_html(args.html, lambda: comparison_report(predictions, result.lines() if len(predictions) > 1 else None))
    if args.json:
        print_json(result.to_document())
        return EXIT_FITS
    if args.lines:
        return _print_lines(result.lines(), full=args.full)
    if args.full:
        from vramcast.report.page import print_page
        from vramcast.report.scenarios import scenarios_page

        print_result(result, lambda console: print_page(scenarios_page(result.scenarios), console))
    else:
        print_result(result)
    return EXIT_FITS


def _lines(args: argparse.Namespace, saved: list[bool]) -> int:
    """Saved results, and jobs among them, line by line."""
    from vramcast.base.errors import UsageError
    from vramcast.features.compare.results import load_result, saved_prediction
    from vramcast.features.compare.side_by_side import compare

    if args.scenarios:
        raise UsageError("--scenario: only jobs have scenarios; the saved results stay as they are")
    stems = [Path(name).stem for name in args.files]
    names = stems if len(set(stems)) == len(stems) else args.files
    results = []
    predictions: dict[str, Prediction] = {}
    for argument, name, is_saved in zip(args.files, names, saved, strict=True):
        if is_saved:
            results.append(load_result(Path(argument), name))
            found = saved_prediction(Path(argument)) if args.html is not None else None
        else:
            result, found = _job_result(args, argument, name)
            results.append(result)
        if found is not None:
            predictions[name] = found
    comparison = compare(results)
    if args.html is not None:
        from vramcast.report.html_comparison import comparison_report

        write_html(args.html, lambda: comparison_report(predictions, comparison))
    if args.json:
        from vramcast.report.documents import comparison_document

        print_json(comparison_document(comparison))
        return EXIT_FITS
    return _print_lines(comparison, full=args.full)


def _print_lines(comparison: Comparison, *, full: bool) -> int:
    from vramcast.report.comparison import print_comparison

    print_result(comparison, (lambda console: print_comparison(comparison, console)) if full else None)
    return EXIT_FITS


def _jobs(args: argparse.Namespace) -> dict[str, LoadedJob]:
    from vramcast.features.compare.scenarios import named_jobs, with_scenarios
    from vramcast.jobs.load import variant

    loaded = [load(args, _whole(argument, args.files[0])) for argument in args.files]
    jobs = named_jobs(loaded) if len(loaded) > 1 else with_scenarios(loaded[0], usual=not args.scenarios)
    for text in args.scenarios:
        name, changes = _parse_scenario(text)
        jobs[name] = variant(loaded[0], name, changes)
    return jobs


def _whole(argument: str, first: str) -> str:
    """ "#inference" alone is a scenario of the first job."""
    return first.partition("#")[0] + argument if argument.startswith("#") else argument


def _parse_scenario(text: str) -> tuple[str, dict[str, Any]]:
    import shlex

    from vramcast.base.errors import UsageError

    name, colon, rest = text.partition(":")
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise UsageError(f"--scenario {text}: {error}") from None
    if not colon or not name.strip() or not words:
        example = '"lora: components.model.mode=lora sizes.batch=8"'
        raise UsageError(f"--scenario {text}: write a name, a colon and changes, e.g. {example}")
    return name.strip(), dict(parse_change(word, "--scenario") for word in words)


def _predict(args: argparse.Namespace, jobs: dict[str, LoadedJob]) -> JobComparison:
    from vramcast.cli.progress import reporting
    from vramcast.features.compare.scenarios import compare

    with reporting() as progress:
        return compare(jobs, args.gpu, args.memory, args.device, progress=progress)


def _job_result(args: argparse.Namespace, argument: str, name: str) -> tuple[Result, Prediction]:
    from vramcast.cli.progress import reporting
    from vramcast.features.compare.scenarios import job_result
    from vramcast.prediction.predict import predict

    loaded = load(args, argument)
    with reporting() as progress:
        found = predict(loaded, args.gpu, progress=progress)
    return job_result(name, found), found.prediction

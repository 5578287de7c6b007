"""The layers of docs/layout.md: each knows only those before it, and few know torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "vramcast"

# Each layer with the layers it may import; every layer may import the base.
BASE = {
    "errors",
    "units",
    "access",
    "assumptions",
    "factories",
    "input_files",
    "outputs",
    "plain_text",
    "processes",
    "script_marks",
    "sealing",
    "torch_versions",
}
LAYERS: dict[str, set[str]] = {
    "gpus": set(),
    "trace": set(),
    "allocator": set(),
    "quick": set(),
    "overlay": set(),
    "launchers": set(),
    "timing": {"gpus", "trace"},
    "diagnosis": set(),
    "memory": {"gpus", "trace", "allocator", "timing"},
    "virtual_gpu": {"gpus", "trace", "allocator", "memory", "overlay", "launchers"},
    "measure": {"gpus", "trace", "allocator", "memory", "timing"},
    "watch": {"gpus"},
    "report": {"gpus", "trace", "memory", "timing", "watch", "diagnosis"},
    "jobs": {"gpus", "trace", "memory", "timing", "report", "virtual_gpu", "overlay", "launchers"},
    "advice": {"gpus", "trace", "memory", "timing", "report", "jobs"},
    "guard": {"gpus", "trace", "memory", "report", "jobs", "virtual_gpu", "overlay"},
    "run_diagnosis": {"gpus", "memory", "diagnosis", "report", "jobs", "advice"},
    "mcp_server": {"gpus", "trace", "memory", "report", "jobs", "advice", "run_diagnosis"},
    "cli": {
        "mcp_server",
        "overlay",
        "launchers",
        "gpus",
        "trace",
        "memory",
        "quick",
        "report",
        "jobs",
        "advice",
        "run_diagnosis",
        "timing",
        "virtual_gpu",
        "measure",
        "watch",
    },
}
MAY_IMPORT_TORCH = {"virtual_gpu", "measure", "guard"}
TORCH_FILES = {
    # What both recorders write of an op's arguments.
    PACKAGE / "trace" / "arguments.py",
    # A job is read without torch; it is built and run with it.
    *(PACKAGE / "jobs" / "components").rglob("*.py"),
    *(PACKAGE / "jobs" / "training").rglob("*.py"),
    *(PACKAGE / "jobs" / name for name in ("tracing.py", "parallel.py", "parameters.py", "shapes.py")),
}


def _imports(path: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.append(node.module or "")
    return names


def _files(layer: str) -> list[Path]:
    return sorted((PACKAGE / layer).rglob("*.py"))


def test_every_folder_is_a_known_layer() -> None:
    folders = {path.parent.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE}
    assert folders <= set(LAYERS), "a new folder needs a place in LAYERS"


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_earlier_ones(layer: str) -> None:
    allowed = LAYERS[layer] | BASE | {layer}
    for path in _files(layer):
        for name in _imports(path):
            parts = name.split(".")
            if parts[0] == "vramcast" and len(parts) > 1:
                assert parts[1] in allowed, f"{path.relative_to(PACKAGE)} imports {name}"


@pytest.mark.parametrize("layer", sorted(set(LAYERS) - MAY_IMPORT_TORCH))
def test_only_some_layers_import_torch(layer: str) -> None:
    for path in _files(layer):
        if path in TORCH_FILES:
            continue
        heavy = [name for name in _imports(path) if name.split(".")[0] in ("torch", "numpy", "transformers")]
        assert not heavy, f"{path.relative_to(PACKAGE)} imports {heavy}"


@pytest.mark.parametrize(
    "code",
    [
        "import vramcast",
        "from vramcast.cli.main import main, make_parser; make_parser().format_help()",
        "import vramcast.memory, vramcast.memory.compare, vramcast.memory.results, vramcast.memory.out_of_memory",
        "import vramcast.report.terminal, vramcast.report.documents, vramcast.report.comparison",
        "import vramcast.allocator, vramcast.trace, vramcast.gpus",
        "import vramcast.jobs.run, vramcast.jobs.load, vramcast.jobs.validation, vramcast.jobs.template; "
        "from vramcast.jobs.readers import readers; list(readers())",
        "import vramcast.jobs.check, vramcast.jobs.explain, vramcast.jobs.compare, vramcast.jobs.table",
        "import vramcast.report.check, vramcast.report.explain, vramcast.report.scenarios, vramcast.report.batch_table",
        "import vramcast; vramcast.check, vramcast.explain, vramcast.compare, vramcast.table, vramcast.advise",
        "import vramcast; vramcast.plan",
        "import vramcast.advice.plan, vramcast.advice.write, vramcast.report.plan, vramcast.jobs.editing.rewrite",
        "import vramcast.advice.search, vramcast.report.advice; from vramcast.advice.knobs import knobs; list(knobs())",
        "import vramcast.timing.costs, vramcast.timing.costs.fitting, vramcast.report.calibration",
        "import vramcast.timing, vramcast.advice.what_if, vramcast.report.outcomes, vramcast.report.chrome_trace",
        "import vramcast; vramcast.diagnose; import vramcast.diagnosis.diagnose, vramcast.report.diagnosis",
        "import vramcast; vramcast.guard; import vramcast.guard.job, vramcast.guard.fallbacks, vramcast.report.guard",
        "import vramcast.memory.alive, vramcast.report.alive, vramcast.pytest_plugin",
        "import vramcast.quick.words, vramcast.gpus.state; vramcast.gpus.state.local_gpus()",
        "import vramcast.cli.watching, vramcast.watch.process_tree, vramcast.report.watch",
    ],
)
def test_importing_leaves_torch_alone(code: str) -> None:
    check = f"import sys; {code}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0

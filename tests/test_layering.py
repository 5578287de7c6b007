"""The layers of docs/layout.md: each knows only those before it, and few know torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "vramcast"

# Each layer with the layers it may import. Modules at the root are layers of their own.
LAYERS: dict[str, set[str]] = {
    "base": set(),
    "errors": {"base"},
    "gpus": {"base"},
    "trace": {"base"},
    "allocator": {"base"},
    "quick": {"base"},
    "overlay": {"base"},
    "launchers": {"base"},
    "timing": {"base", "gpus", "trace"},
    "memory": {"base", "gpus", "trace", "allocator", "timing"},
    "card": {"base", "gpus", "trace", "allocator", "memory", "overlay"},
    "scripts": {"base", "gpus", "trace", "memory", "overlay", "launchers", "card"},
    "jobs": {"base", "trace", "overlay", "launchers", "card"},
    "prediction": {"base", "gpus", "trace", "memory", "timing", "overlay", "card", "scripts", "jobs", "__init__"},
    "features": {
        *("base", "gpus", "trace", "memory", "timing", "overlay"),
        *("card", "jobs", "prediction"),
    },
    "report": {"base", "gpus", "trace", "memory", "timing", "prediction", "features"},
    "mcp": {"base", "gpus", "jobs", "prediction", "features", "report", "__init__"},
    "serve": {"base", "gpus", "trace", "memory", "overlay", "jobs", "prediction", "features", "report"},
    "pytest_plugin": {"base", "gpus", "memory", "card", "prediction", "features", "report"},
    "cli": {
        *("base", "gpus", "trace", "memory", "timing", "overlay", "launchers", "quick", "scripts"),
        *("jobs", "prediction", "features", "report", "mcp", "serve", "__init__"),
    },
    "__init__": set(),
    "__main__": {"cli"},
}
SHOWS_RESULTS = {"cli", "mcp", "serve", "pytest_plugin", "report"}
MAY_IMPORT_TORCH = {"card", "scripts"}
TORCH_FILES = {
    PACKAGE / "pytest_plugin.py",
    # What both recorders write of an op's arguments.
    PACKAGE / "trace" / "arguments.py",
    # A job is read without torch; it is built and run with it.
    *(PACKAGE / "jobs" / "building").rglob("*.py"),
    *(PACKAGE / "jobs" / "training").rglob("*.py"),
    *(path for path in (PACKAGE / "jobs" / "networks").glob("*.py") if path.name != "kinds.py"),
    *(
        PACKAGE / "prediction" / name
        for name in ("tracing.py", "parallel.py", "parameter_table.py", "module_shapes.py")
    ),
    *(PACKAGE / "features" / "measure").rglob("*.py"),
    *(PACKAGE / "features" / "guard").rglob("*.py"),
}


class _WithoutTypes(ast.NodeTransformer):
    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" else self.generic_visit(node)


def _layer(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def _imports(path: Path) -> list[str]:
    """What is imported when the program runs; names of types for mypy alone do not count."""
    names: list[str] = []
    tree = _WithoutTypes().visit(ast.parse(path.read_text(encoding="utf-8")))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "vramcast":
                names += [f"vramcast.{alias.name}" for alias in node.names]
            else:
                names.append(node.module or "")
    return names


def _layers_imported(path: Path) -> set[str]:
    layers = set()
    for name in _imports(path):
        parts = name.split(".")
        if parts[0] == "vramcast":
            known = len(parts) > 1 and parts[1] in LAYERS
            layers.add(parts[1] if known else "__init__")
    return layers


def _files(layer: str) -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if _layer(path) == layer]


def test_every_module_is_in_a_known_layer() -> None:
    assert {_layer(path) for path in PACKAGE.rglob("*.py")} == set(LAYERS), "LAYERS names each folder and root module"


def test_the_layers_have_no_circle() -> None:
    """A layer imports only those that come before it in the list, so that data flows one way."""
    before: set[str] = set()
    for layer, imported in LAYERS.items():
        assert imported - {"__init__"} <= before, layer
        before.add(layer)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_earlier_ones(layer: str) -> None:
    allowed = LAYERS[layer] | {layer}
    for path in _files(layer):
        beyond = _layers_imported(path) - allowed
        assert not beyond, f"{path.relative_to(PACKAGE)} imports {sorted(beyond)}"


@pytest.mark.parametrize("layer", LAYERS)
def test_no_layer_is_allowed_what_it_does_not_use(layer: str) -> None:
    used = set().union(*map(_layers_imported, _files(layer)))
    assert LAYERS[layer] <= used, f"{layer} does not import {sorted(LAYERS[layer] - used)}"


@pytest.mark.parametrize("layer", sorted(set(LAYERS) - SHOWS_RESULTS))
def test_nothing_below_imports_report(layer: str) -> None:
    assert not [path for path in _files(layer) if "report" in _layers_imported(path)]


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
        "import vramcast.memory, vramcast.memory.out_of_memory, vramcast.features.compare.results",
        "import vramcast.features.compare.side_by_side",
        "import vramcast.report.terminal, vramcast.report.documents, vramcast.report.comparison, vramcast.report.looks",
        "import vramcast.allocator, vramcast.trace, vramcast.gpus",
        "import vramcast.prediction.predict, vramcast.jobs.load, vramcast.jobs.validation, vramcast.jobs.template; "
        "from vramcast.jobs.readers import readers; list(readers())",
        "import vramcast.features.check.check, vramcast.features.explain.explain",
        "import vramcast.features.compare.scenarios, vramcast.features.table.table",
        "import vramcast.report.check, vramcast.report.explain, vramcast.report.scenarios, vramcast.report.batch_table",
        "import vramcast; vramcast.check, vramcast.explain, vramcast.compare, vramcast.table, vramcast.advise",
        "import vramcast; vramcast.plan",
        "import vramcast.features.plan.plan, vramcast.features.advise.write, vramcast.jobs.editing.rewrite",
        "import vramcast.report.plan, vramcast.report.advice, vramcast.features.advise.search; "
        "from vramcast.features.advise.knobs import knobs; list(knobs())",
        "import vramcast.timing.costs, vramcast.timing.costs.fitting, vramcast.report.calibration",
        "import vramcast.timing, vramcast.features.what_if.what_if, vramcast.report.outcomes",
        "import vramcast.report.chrome_trace",
        "import vramcast; vramcast.diagnose; import vramcast.features.diagnose.logs.diagnose",
        "import vramcast; vramcast.guard; import vramcast.features.guard.job, vramcast.features.guard.fallbacks",
        "import vramcast.report.diagnosis, vramcast.report.guard",
        "import vramcast.memory.alive, vramcast.report.alive, vramcast.pytest_plugin",
        "import vramcast.quick.words, vramcast.gpus.state; vramcast.gpus.state.local_gpus()",
        "import vramcast.cli.watching, vramcast.features.watch.process_tree, vramcast.report.watch",
    ],
)
def test_importing_leaves_torch_alone(code: str) -> None:
    check = f"import sys; {code}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0

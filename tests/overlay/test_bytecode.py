"""Installed packages are compiled once; nothing else of the run reaches the disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.overlay.conftest import kernel_way

PROGRAM = """
import os, sys
from pathlib import Path
from vramcast import overlay

packages = Path(sys.argv[1])
with overlay.protected(own_process=True):
    import installed
    assert all(entry.stat() for entry in os.scandir(packages))  # what is listed is there
    (packages / "patched.py").write_text("x = 2")
    import patched, mine
    if os.fork() == 0:
        import imported_by_a_fork
        os._exit(0)
    os.wait()
    assert (installed.x, patched.x, mine.x) == (1, 2, 1)
"""


@pytest.mark.parametrize("user", ["root", "user"])
def test_bytecode_of_installed_packages_is_kept(tmp_path: Path, user: str) -> None:
    if not kernel_way():
        pytest.skip("no mount namespaces for this user here")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True, timeout=60)
    packages = next((tmp_path / "env").glob("lib/python*/site-packages"))
    here = tmp_path / "here"
    here.mkdir()
    for folder, name in [
        (packages, "installed"), (packages, "patched"), (packages, "imported_by_a_fork"), (here, "mine")
    ]:  # fmt: skip
        (folder / f"{name}.py").write_text("x = 1")
    program = PROGRAM
    if user == "user":
        program = "from vramcast.overlay import kernel\nkernel.enter.__kwdefaults__['as_root'] = False\n" + program
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [tmp_path / "env/bin/python", "-c", program, packages], cwd=here, capture_output=True, text=True, check=False,
        timeout=60, env={**environment, "PYTHONPATH": str(Path("src").resolve())},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kept = {path.name.partition(".")[0] for path in packages.glob("__pycache__/*")}
    assert kept == {"installed", "imported_by_a_fork"}
    assert (packages / "patched.py").read_text() == "x = 1"
    assert [path.name for path in here.iterdir()] == ["mine.py"]

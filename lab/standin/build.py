"""Compile the stand-in for CUDA against one torch: the functions written here, and one that does nothing for each
other function of CUDA's libraries that this torch calls."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = ("runtime.cpp", "libraries.cpp")
_CALLED = re.compile(r"^(cuda|__cuda|cu[A-Z]|cublas|cudnn|cufft|curand|cusparse|cusolver|nccl)\w+$")
_ASKED_OF_CUDNN = re.compile(
    r"cudnn(Backend|Create|Destroy|Set(?!Dropout|Stream)|Get(Version|CudartVersion|Property|ErrorString|LastErrorString|\w+Descriptor)$)"
)
"""What the real cuDNN does, which needs no card for it."""
_DEFINED = re.compile(r"^(?:const char\*|size_t|void\*?\*?|\w+_t|CUresult) (\w+)\(", re.MULTILINE)
_QUIET = re.compile(
    r"cuda(Set|Peek|GetLast|Stream|Event|Launch|Graph|Func|Profiler|Thread|Host|Device)|__cuda|cu(Ctx|Launch|Func)"
    r"|cublas(Lt|Set|Destroy|Gemm|DotEx|[SDCZH](gem|dot))|nccl"
)
"""Functions that take no memory of their own on a card either: calls of the rest are reported."""


def build(site_packages: Path, folder: Path) -> Path:
    """The shared library, to be preloaded."""
    library = folder / "libcuda.so.1"
    sources = [HERE / name for name in SOURCES]
    if library.exists() and all(library.stat().st_mtime > s.stat().st_mtime for s in [*sources, Path(__file__)]):
        return library
    defined = {name for source in sources for name in _DEFINED.findall(source.read_text())}
    missing = sorted((_called(site_packages / "torch" / "lib") | _driver(site_packages)) - defined)
    rest = folder / "rest.c"
    rest.write_text("void standin_said(const char*);\n" + "".join(_does_nothing(name) for name in missing))
    include = [f"-I{path}" for path in _includes(site_packages)]
    subprocess.run(["gcc", "-c", "-fPIC", "-w", "-O1", rest, "-o", folder / "rest.o"], check=True)
    subprocess.run(
        ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-Wno-deprecated-declarations", *include, *sources,
         folder / "rest.o", "-o", library, "-Wl,-soname,libcuda.so.1", "-ldl"],
        check=True,
    )  # fmt: skip
    return library


def _called(libraries: Path) -> set[str]:
    """The functions of CUDA's libraries that torch's own libraries leave to others."""
    names: set[str] = set()
    for library in sorted(libraries.glob("lib*.so*")):
        listed = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True)
        names.update(line.split()[-1].split("@")[0] for line in listed.stdout.splitlines() if line)
    return {name for name in names if _CALLED.match(name) and not _ASKED_OF_CUDNN.match(name)}


def _driver(site_packages: Path) -> set[str]:
    """The driver's functions, under the names of all their versions."""
    declared = (site_packages / "triton/backends/nvidia/include/cuda.h").read_text()
    names = set(re.findall(r"CUresult CUDAAPI\s+(cu\w+)\(", declared))
    return names | {re.sub(r"_v\d$", "", name) for name in names}


def _does_nothing(name: str) -> str:
    said = "" if _QUIET.match(name) else f'static char said; if (!said) {{ said = 1; standin_said("{name}"); }} '
    return f"int {name}(void) {{ {said}return 0; }}\n"


def _includes(site_packages: Path) -> list[Path]:
    """CUDA's headers, of the packages that torch brings; Triton has those that they lack."""
    return [*sorted(site_packages.glob("nvidia/*/include")), site_packages / "triton/backends/nvidia/include"]

"""Packages of CUDA kernels that cannot be installed without a GPU.

Where a program cannot run without such a package, and it is not installed, a stand-in answers `import` while the card
is there: the same names, and memory as the package's source allocates it (`kernels`). A program, or a library, that
looks for the package and does without it gets no for an answer, unless the user says that the package will be there.
"""

from vramcast.card.stand_ins.finder import StandIns

__all__ = ["StandIns"]

"""`python -m vramcast` is the same as `vramcast`."""

import os
import sys

# `python -m` puts the current folder first on the search path, where a file could stand in for a library.
if sys.path and os.path.realpath(sys.path[0]) == os.path.realpath(os.getcwd()):
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from vramcast.cli.main import entry

entry()

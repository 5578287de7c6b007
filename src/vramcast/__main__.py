"""`python -m vramcast` is the same as `vramcast`."""

import sys

from vramcast.cli.main import main

sys.exit(main())

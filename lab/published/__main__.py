"""`python -m lab.published page` writes docs/lab/published.md; `draw`, `predict`, `farm` are modules of their own."""

from __future__ import annotations

import sys

from lab.published import page


def main() -> int:
    if sys.argv[1:] != ["page"]:
        print(__doc__, file=sys.stderr)
        return 2
    page.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Published measurements of other people's runs on other cards, predicted again from their recipes.

The rows are not part of this repository: they are read from a folder beside it (VRAMCAST_EXTERNAL names another
place), and only aggregates are written to docs/lab/accuracy.md.
"""

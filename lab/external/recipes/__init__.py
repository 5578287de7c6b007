"""The published recipes, rebuilt from their description: `run(row)` trains as that row's run did.

Each returns what it built, so that a row whose stated parameter count differs can be dropped.
"""

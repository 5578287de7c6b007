"""Workload factories, one module a family.

A factory takes keyword arguments that all have defaults, builds its job on "cuda" as ordinary code would, and
returns `step`, which runs one optimizer iteration. Nothing here knows that it is measured or predicted.
"""

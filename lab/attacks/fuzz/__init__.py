"""Mutated inputs for everything that reads: job files, folders, scripts, traces, logs, calibrations, command lines.

    python -m lab.attacks.fuzz --count 100000          # `make fuzz`
    python -m lab.attacks.fuzz --only 4711             # one case again, with its traceback

A case is a number: with --seed it says which input is taken and how it is changed. Anything but a result or a
VramcastError is a failure; so is more than 10 s of CPU time or 2 GiB of memory.
"""

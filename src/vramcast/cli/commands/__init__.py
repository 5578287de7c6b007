"""One verb a module: `add_arguments(parser)` says what it takes, `execute(args)` does it and gives the exit code.

Heavy imports stand inside `execute`, so that `vramcast --help` answers at once and without torch.
"""

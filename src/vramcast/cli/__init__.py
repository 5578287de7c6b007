"""The command line. Each verb is a module of `commands`; its docstring is its help."""

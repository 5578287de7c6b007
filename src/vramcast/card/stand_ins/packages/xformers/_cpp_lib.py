"""Programs ask here whether the compiled part is there, and how it was built."""


def _register_extensions() -> None:
    return None

"""Packages that answer `import` where the real ones are not installed; each says in `__version__` whose memory it follows."""

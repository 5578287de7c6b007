"""Packages that answer `import`; each says in `__version__` whose memory it follows."""

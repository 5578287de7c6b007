"""Plain networks of well-known kinds, for asking what one would take before it is written."""

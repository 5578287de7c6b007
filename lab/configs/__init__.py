"""Real configs of other tools, from their own repositories: fetched, read and tabulated, never committed."""

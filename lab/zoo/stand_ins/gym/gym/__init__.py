"""The names that a script takes from gym without making an environment of it."""

"""Imported by readers of video files that are not used here."""

"""Measurements of the page and the report in the system's Chromium, driven by Playwright."""

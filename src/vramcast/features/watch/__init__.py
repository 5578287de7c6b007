"""Watching the cards over time: samples, their history, logs. Drawing is in report/."""

"""Ordinary training scripts, one for each technique, predicted and measured whole."""

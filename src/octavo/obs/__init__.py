"""Seeing what happens: log lines and metrics."""

"""Measuring: loads, the machine, and the figures that scripts/accept prints."""

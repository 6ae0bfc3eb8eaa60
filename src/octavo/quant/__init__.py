"""Execution formats of weights and what a checkpoint's tensor types become."""

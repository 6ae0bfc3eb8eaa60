"""Probes of the scheduler: what only wastes work passes an equality test, so here are the ratios."""

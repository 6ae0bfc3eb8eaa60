"""Octavo beside its rivals: the same loads, the same cores, the same hour (`python -m bench.compare --help`)."""

"""The brain: who computes what in which step, and in which blocks. Pure Python, no arrays."""

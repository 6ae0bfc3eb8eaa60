"""Runs plans on a backend: the memory plan, loading, the workers' columns. NumPy starts here."""

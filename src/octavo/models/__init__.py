"""Model families: one file each, at most 200 lines, no inheritance between them, one row in registry.py."""

"""Where models lie: one file a place, all behind the port of `place.py`; the table of places is `table.py`."""

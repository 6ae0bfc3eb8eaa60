"""The specification in NumPy: one function an op kind, with shapes, dtypes and source.

Set OPENBLAS_NUM_THREADS=1 before NumPy is imported where several processes run it: importing NumPy starts BLAS's pool,
and its threads fight with the engine's.
"""

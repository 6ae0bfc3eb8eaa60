"""Linears beside the machine's own limits.

    python -m bench.linear [--isa avx2] [--formats int4m int6k] [--threads 1 2] [--rows 1 8 64]

For each shape, format, row count and thread count: microseconds of one call, weight bytes a second, operations a second
(2 per multiply-add), and the share of what this machine does at best: reading memory (few rows) or issuing the
instructions (many rows). Weights are cycled through 128 MiB, so that they come from memory as in a real model.

The limits are measured here, in the same minute. `read`: a float32 linear of one row, which does nothing but read
its weight. `float32`: what 240 rows more cost one whose weight stays in the caches. The integer ceilings are bounds
made from it: 4 bits 4 times (vpmaddubsw + vpaddw, 32 multiply-adds in the slots of two), 8 bits 2 times. On Zen 3 a
bare loop of those two instructions reached 3.2 times float32, so 80 % is all there is for 4 bits. With AVX-512 VNNI
both are 4 times.
"""

from __future__ import annotations

import argparse

from octavo import _native
from octavo.kernels.limits import Meter

SHAPES = [(576, 960), (576, 3072), (1536, 576), (576, 49152), (2048, 8192), (896, 9728), (4864, 896), (896, 151936)]
"""(k, n): SmolLM2-135M's, a larger one, Qwen2.5-0.5B's."""
FORMATS = [
    "int4m", "int4", "int4k", "int4n", "int4x", "int4e", "int5", "int5k", "int6k", "int3k", "int2k", "int8", "int8f",
    "int8t", "bf16", "f32",
]  # fmt: skip
ROWS = [1, 4, 8, 16, 32, 64, 256]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--isa", default=_native.isas()[-1], choices=_native.isas())
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--shapes", nargs="+", type=int, default=range(len(SHAPES)), help="indices into SHAPES")
    args = parser.parse_args()
    for threads in args.threads:
        bench = Meter(args.isa, threads)
        read, flops = bench.read(), bench.peak("f32")
        print(f"{args.isa}, {threads} threads: read {read / 1e9:.1f} GB/s, float32 {flops / 1e9:.0f} GFLOP/s")
        for fmt in args.formats:
            slow = args.isa == "avx2" and fmt in ("int8", "int8f", "int8t", "int6k", "int3k", "int4n", "int4x")
            factor = 1 if fmt in ("f32", "bf16") else 2 if slow else 4
            ceiling = flops * factor
            for k, n in (SHAPES[i] for i in args.shapes):
                size = _native.packed_bytes(fmt, n, k)
                cells = []
                for m in args.rows:
                    t = bench.seconds(fmt, m, k, n)
                    share = max(size / t / read, 2.0 * m * k * n / t / ceiling)
                    rate = f"{size / t / 1e9:.1f} GB/s" if m <= 8 else f"{2e-9 * m * k * n / t:.0f} GOP/s"
                    cells.append(f"M={m}: {t * 1e6:.0f} us {rate} ({100 * share:.0f} %)")
                print(f"  {fmt:5s} {k}x{n}  " + "  ".join(cells), flush=True)


if __name__ == "__main__":
    main()

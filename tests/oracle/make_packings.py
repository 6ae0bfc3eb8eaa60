"""Writes tests/data/packings.json: one small matrix, packed by the packages that define each layout.

    pip install --no-deps --target FOLDER autoawq==0.2.7.post3 auto-gptq==0.7.1 compressed-tensors==0.20.1
    python -m tests.oracle.make_packings FOLDER

Codes, zeros and scales are drawn here; the packages pack them, and unpack what they packed to the same numbers. Only
the modules that pack are imported: what is around them wants older versions of transformers.
"""

from __future__ import annotations

import base64
import importlib
import json
import sys
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

FILE = Path(__file__).parents[1] / "data" / "packings.json"
ROWS, COLUMNS, GROUP = 32, 64, 32
PACKAGES = ("autoawq", "auto_gptq", "compressed-tensors")
Drawn = dict[str, NDArray[Any]]


def bare(folder: Path, module: str) -> Any:
    """A module of a package under `folder`, without running any package's __init__."""
    parts = module.split(".")
    for depth in range(1, len(parts)):
        name = ".".join(parts[:depth])
        if name not in sys.modules:
            package = ModuleType(name)
            package.__path__ = [str(folder.joinpath(*parts[:depth]))]
            sys.modules[name] = package
    return importlib.import_module(module)


def draw(seed: int, bits: int, *, scattered: bool = False) -> Drawn:
    """Codes [n, k], zeros and f16 scales [n, groups], and the group of each column [k]."""
    rng = np.random.default_rng(seed)
    groups = np.arange(COLUMNS) // GROUP
    return {
        "codes": rng.integers(0, 2**bits, (ROWS, COLUMNS)),
        "zeros": rng.integers(1, 2**bits, (ROWS, COLUMNS // GROUP)),
        "scales": rng.uniform(0.01, 0.1, (ROWS, COLUMNS // GROUP)).astype(np.float16),
        "groups": rng.permutation(groups) if scattered else groups,
    }


def meant(drawn: Drawn) -> NDArray[np.float32]:
    """The matrix [n, k]."""
    of = drawn["groups"]
    scales = drawn["scales"].astype(np.float32)
    return np.asarray((drawn["codes"] - drawn["zeros"][:, of]) * scales[:, of], np.float32)


def linear(drawn: Drawn) -> Any:
    """The same as torch's layer."""
    import torch

    layer = torch.nn.Linear(COLUMNS, ROWS, bias=False)
    layer.weight.data = torch.from_numpy(meant(drawn))
    return layer


def awq(folder: Path, drawn: Drawn) -> dict[str, Any]:
    import torch

    gemm, packing = bare(folder, "awq.modules.linear.gemm"), bare(folder, "awq.utils.packing_utils")
    gemm.get_best_device = lambda: "cpu"
    scales, zeros = (torch.from_numpy(np.ascontiguousarray(drawn[name].T)) for name in ("scales", "zeros"))
    made = gemm.WQLinear_GEMM.from_linear(linear(drawn), 4, GROUP, scales=scales.float(), zeros=zeros)
    codes, zeros = packing.reverse_awq_order(*packing.unpack_awq(made.qweight, made.qzeros, 4), 4)
    assert (drawn["codes"] == (codes.numpy() & 15).T).all() and (drawn["zeros"] == (zeros.numpy() & 15).T).all()
    return {name: getattr(made, name).numpy() for name in ("qweight", "qzeros", "scales")}


def gptq(folder: Path, drawn: Drawn, *, bits: int) -> dict[str, Any]:
    import torch

    module = bare(folder, "auto_gptq.nn_modules.qlinear.qlinear_cuda")
    made = module.QuantLinear(bits, GROUP, COLUMNS, ROWS, bias=False, weight_dtype=torch.float32)
    scales, zeros = (torch.from_numpy(drawn[name].astype(np.float32)) for name in ("scales", "zeros"))
    made.pack(linear(drawn), scales, zeros, torch.from_numpy(drawn["groups"].astype(np.int32)))
    made.autogptq_cuda_available = False
    with torch.inference_mode():
        dense = made(torch.eye(COLUMNS)).numpy().T
    assert (dense == meant(drawn)).all()
    tensors = {name: getattr(made, name).numpy() for name in ("qweight", "qzeros", "scales", "g_idx")}
    return {**tensors, "scales": tensors["scales"].astype(np.float16)}


def packed(folder: Path, drawn: Drawn) -> dict[str, Any]:
    import torch

    helpers = bare(folder, "compressed_tensors.compressors.pack_quantized.helpers")
    codes, zeros = (torch.from_numpy((drawn[name] - 8).astype(np.int8)) for name in ("codes", "zeros"))
    words = helpers.pack_to_int32(codes, 4)
    assert (helpers.unpack_from_int32(words, 4, codes.shape) == codes).all()
    return {
        "weight_packed": words.numpy(),
        "weight_scale": drawn["scales"],
        "weight_zero_point": helpers.pack_to_int32(zeros, 4, packed_dim=0).numpy(),
        "weight_shape": np.array(codes.shape),
    }


def text(value: NDArray[Any]) -> dict[str, Any]:
    """A tensor as JSON: type of a safetensors file, shape, and its bytes in base64."""
    kind = {"float16": "F16", "uint8": "U8", "int32": "I32", "int64": "I64"}[str(value.dtype)]
    return {"type": kind, "shape": value.shape, "data": base64.b64encode(value.tobytes()).decode()}


def entry(drawn: Drawn, tensors: dict[str, Any]) -> dict[str, Any]:
    """One layout: what the matrix is made of, and the package's tensors."""
    small = {name: value if name == "scales" else value.astype(np.uint8) for name, value in drawn.items()}
    return {
        "drawn": {name: text(value) for name, value in small.items()},
        "tensors": {name: text(np.ascontiguousarray(value)) for name, value in tensors.items()},
    }


def main() -> None:
    folder = Path(sys.argv[1])
    sys.path.insert(0, str(folder))
    versions = {d.metadata["Name"]: d.version for d in distributions(path=[str(folder)])}
    assert set(versions) >= {*PACKAGES}, versions
    drawn = {"awq": draw(1, 4), "gptq": draw(2, 4), "gptq-8": draw(3, 8), "ct-w4a16-zeros": draw(5, 4)}
    drawn["gptq-act-order"] = draw(4, 4, scattered=True)
    made = {
        "awq": awq(folder, drawn["awq"]),
        "gptq": gptq(folder, drawn["gptq"], bits=4),
        "gptq-8": gptq(folder, drawn["gptq-8"], bits=8),
        "gptq-act-order": gptq(folder, drawn["gptq-act-order"], bits=4),
        "ct-w4a16-zeros": packed(folder, drawn["ct-w4a16-zeros"]),
    }
    lines = [f'"versions": {json.dumps({name: versions[name] for name in PACKAGES})}']
    lines += [f"{json.dumps(kind)}: {json.dumps(entry(drawn[kind], made[kind]))}" for kind in made]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{FILE}: {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()

"""Pack the packages that ``pip install '.[proxy,trainer,gpu]'`` gives a GPU user, for a Hopper host without a network.

    python benchmarks/offline_gpu/bundle.py OUT [--wheels FOLDER] [--piece-mb 48]

It needs uv, zstd and a package index; 8 GB of disk; no GPU. It asks uv for the whole resolution for Python 3.12 and
Linux, downloads the wheels, leaves out what one dense model on one Hopper card does not use, empties GPU code of other
cards, and writes ``OUT/part.00``, ``part.01``, …, which together are one tar of about 550 MB, and a wheel that unpacks
it where zstd is not installed. ``unpack.sh`` puts them together there. The host has CUDA 13.0's own libraries (cuBLAS, cuFFT, …), a Python 3.12 and the packages of
``ON_THE_HOST``; what it brings of torch goes before them.
"""

from __future__ import annotations

import argparse
import glob
import os
import re
import shutil
import struct
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PINS = "vllm==0.32.0\ntorch==2.13.0\n"
PYTHON, PLATFORM = "3.12", "x86_64-manylinux_2_39"
ON_THE_HOST = {
    "absl-py", "aiohappyeyeballs", "aiosignal", "anyio", "certifi", "charset-normalizer", "contourpy", "cuda-bindings",
    "cuda-core", "cuda-pathfinder", "cuda-toolkit", "cycler", "einops", "fonttools", "grpcio", "h11", "httpcore",
    "httpx", "idna", "jinja2", "kiwisolver", "llvmlite", "markdown-it-py", "markupsafe", "matplotlib", "mdurl",
    "ml-dtypes", "mpmath", "networkx", "ninja", "numba", "numpy", "nvidia-cublas", "nvidia-cuda-cupti",
    "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cufft", "nvidia-cufile", "nvidia-curand", "nvidia-cusolver",
    "nvidia-cusparse", "nvidia-cusparselt-cu13", "nvidia-ml-py", "nvidia-nvjitlink", "nvidia-nvtx", "pandas", "pillow",
    "protobuf", "psutil", "py-cpuinfo", "pyarrow", "pygments", "pyparsing", "python-dateutil", "pyyaml", "requests",
    "sentencepiece", "setuptools", "shellingham", "six", "sympy", "tabulate", "tiktoken", "torchaudio", "tqdm",
    "urllib3", "xxhash", "opencv-python-headless",
}  # fmt: skip
UNUSED = {
    "cuda-python", "cuda-tile", "fastapi-cloud-cli", "humming-kernels", "instanttensor", "nvidia-cuda-cccl",
    "nvidia-cuda-crt", "nvidia-cuda-nvcc", "nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-core",
    "nvidia-cutlass-dsl-libs-cu12", "nvidia-cutlass-dsl-libs-cu13", "nvidia-nvvm", "pynvvideocodec", "sentry-sdk",
    "tilelang", "tokenspeed-mla", "tokenspeed-triton", "torchcodec", "z3-solver",
}  # fmt: skip
"""Not imported while vLLM serves a dense model with LoRA and FlashAttention 3, nor by TRL."""
UNUSED_FILES = (
    "vllm/vllm-rs", "vllm/vllm_flash_attn/_vllm_fa2_C*", "vllm/vllm_flash_attn/cute", "vllm/third_party/deep_gemm",
    "vllm/third_party/fmha_sm100", "vllm/_qutlass*", "vllm/_flashmla*", "nccl", "cudnn", "flashinfer/data/*",
    "triton/backends/nvidia/lib/cupti/*.a", "triton/_C/libproton.so", "triton/backends/nvidia/bin/ptxas-blackwell",
    "nvidia/cudnn/lib/libcudnn_engines_precompiled*", "nvidia/cudnn/lib/libcudnn_adv*",
    "nvidia/cudnn/lib/libcudnn_heuristic*", "nvidia/nvshmem/lib/*.bc", "nvidia/nvshmem/lib/*.a", "nvidia/*/include",
    "pycountry/locales", "mistral_common/data", "torch/include", "torch/test",
)  # fmt: skip
THINNED_FILES = (
    "torch/lib/libtorch_cuda.so", "torch/lib/libtorch_cuda_linalg.so", "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so",
    "vllm/_C_stable_libtorch.abi3.so", "vllm/_moe_C_stable_libtorch.abi3.so", "nvidia/nccl/lib/libnccl.so.2",
)  # fmt: skip
FATBIN_MAGIC = b"\x50\xed\x55\xba"
HOPPER_ARCH, AMPERE_ARCH = 90, 80


def resolve(work: Path) -> list[str]:
    """``name==version`` of all that the extras need, as uv resolves them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = work / "wanted.in"
    wanted.write_text(PINS + "\n".join([*project["dependencies"], *extras["proxy"], *extras["trainer"]]))
    locked = (line for line in (ROOT / "requirements/lock.txt").read_text().splitlines() if "+cpu" not in line)
    constraints = work / "constraints.txt"
    named = re.compile(r"(accelerate|datasets|duckdb|peft|safetensors|tokenizers|transformers|trl)==")
    constraints.write_text("\n".join(line for line in locked if named.match(line)))
    argv = ["uv", "pip", "compile", "-q", str(wanted), "-c", str(constraints), "--no-annotate", "--no-header"]
    argv += ["--python-version", PYTHON, "--python-platform", PLATFORM]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()


def download(pins: list[str], folder: Path) -> None:
    """Wheels of ``pins``, for the host's Python."""
    platforms = [f"manylinux_2_{n}_x86_64" for n in range(39, 4, -1)] + ["manylinux2014_x86_64", "linux_x86_64"]
    argv = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
    argv += ["--python-version", PYTHON, "--implementation", "cp", *(f"--platform={name}" for name in platforms)]
    subprocess.run([*argv, *pins], check=True)


def unpack(wheel: Path, site: Path) -> None:
    """As an installer does, without scripts. Programs keep their right to run: Triton's assembler is one."""
    with zipfile.ZipFile(wheel) as packed:
        for entry in packed.infolist():
            parts = entry.filename.split("/")
            if entry.is_dir():
                continue
            if parts[0].endswith(".data"):
                if parts[1] not in ("purelib", "platlib"):
                    continue
                parts = parts[2:]
            path = site.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            with packed.open(entry) as source, path.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 22)
            if (entry.external_attr >> 16) & 0o111:
                path.chmod(0o755)


def thin(path: Path) -> None:
    """Zero the code of cards that a Hopper would not pick. Headers and offsets stay; zeros pack to nothing."""
    data = bytearray(path.read_bytes())
    at = data.find(FATBIN_MAGIC)
    while at >= 0:
        version, header, size = struct.unpack_from("<HHQ", data, at + 4)
        end = at + header + size
        found: list[tuple[int, int, int, int, int]] = []
        place = at + header
        while version == 1 and header == 16 and place < end <= len(data):
            kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", data, place)
            if not entry_header or place + entry_header + entry_size > end + 64:
                found = []
                break
            found.append((place, kind, entry_header, entry_size, struct.unpack_from("<I", data, place + 28)[0]))
            place += entry_header + entry_size
        kept = _kept(found)
        for place, kind, entry_header, entry_size, _arch in found:
            if kind in (1, 2) and place not in kept:
                data[place + entry_header : place + entry_header + entry_size] = bytes(entry_size)
        at = data.find(FATBIN_MAGIC, end if found else at + 4)
    path.write_bytes(data)


def _kept(found: list[tuple[int, int, int, int, int]]) -> set[int]:
    """Places of the machine code (kind 2) that a Hopper runs, else of the newest portable code (kind 1)."""
    machine = [e for e in found if e[1] == 2 and e[4] == HOPPER_ARCH]
    machine = machine or [e for e in found if e[1] == 2 and AMPERE_ARCH <= e[4] < HOPPER_ARCH]
    if machine:
        newest = max(e[4] for e in machine)
        return {e[0] for e in machine if e[4] == newest}
    portable = [e for e in found if e[1] == 1 and e[4] <= HOPPER_ARCH]
    return {max(portable, key=lambda e: e[4])[0]} if portable else set()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--wheels", type=Path, help="keep wheels here, and take those that are there")
    parser.add_argument("--piece-mb", type=int, default=48)
    args = parser.parse_args()
    work = args.out / "work"
    site, wheels = work / "site", args.wheels or work / "wheels"
    shutil.rmtree(site, ignore_errors=True)
    for folder in (site, wheels):
        folder.mkdir(parents=True, exist_ok=True)
    pins = [pin for pin in resolve(work) if pin.split("==")[0].lower() not in ON_THE_HOST | UNUSED]
    download(pins, wheels)
    for wheel in sorted(wheels.glob("*.whl")):
        unpack(wheel, site)
    for pattern in UNUSED_FILES:
        for name in glob.glob(pattern, root_dir=site):
            path = site / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in THINNED_FILES:
        thin(site / name)
    subprocess.run(["strip", "--strip-debug", site / "triton/_C/libtriton.so"], check=True)
    command = "tar --owner=0 --group=0 -cf - site | zstd -q -7 -T0 | split -d -b {}MB - {}"
    for old in args.out.glob("part.*"):
        old.unlink()
    subprocess.run(
        ["bash", "-c", "set -o pipefail; " + command.format(args.piece_mb, args.out.resolve() / "part.")],
        cwd=work,
        check=True,
    )
    download(["zstandard"], args.out)  # for a host without zstd
    print(f"{len(pins)} packages, {sum(p.stat().st_size for p in args.out.glob('part.*')) / 1e6:.0f} MB", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    main()

#!/usr/bin/env bash
# On the GPU host: bash unpack.sh FOLDER-OF-PARTS [INTO]. Then: export PYTHONPATH=INTO/site
# Without zstd it takes bundle.py's wheel from FOLDER-OF-PARTS. The CUDA libraries that torch does not bring stay the host's.
set -euo pipefail
parts=$1 into=${2:-/tmp}
mkdir -p "$into"
if command -v zstd >/dev/null; then unpack=(zstd -dcq); else
  python3 -m zipfile -e "$parts"/zstandard-*.whl "$into/unpacker"
  unpack=(env PYTHONPATH="$into/unpacker" python3 -c 'import sys, zstandard
zstandard.ZstdDecompressor().copy_stream(sys.stdin.buffer, sys.stdout.buffer)')
fi
cat "$parts"/part.* | "${unpack[@]}" | tar -C "$into" -xf -
host=$(PYTHONPATH= python3 -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))')
for folder in "$host"/nvidia/*; do
  [ -e "$into/site/nvidia/$(basename "$folder")" ] || ln -s "$folder" "$into/site/nvidia/"
done
PYTHONPATH=$into/site python3 -c 'import torch, vllm, trl, transformers
print("torch", torch.__version__, "vllm", vllm.__version__, "trl", trl.__version__, torch.cuda.get_device_name())'

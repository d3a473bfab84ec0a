#!/bin/sh
# `slipstream "$@"`, with secrets taken from files where NAME_FILE names one (it is unset: the configuration refuses unknown settings).
set -eu
for name in SLIPSTREAM_API_KEY SLIPSTREAM_ENGINE__API_KEY SLIPSTREAM_STORE__URL JUDGE_API_KEY HF_TOKEN; do
  eval "file=\${${name}_FILE:-}"
  unset "${name}_FILE"
  if [ -n "$file" ]; then
    value=$(cat "$file")
    export "$name=$value"
  fi
done
exec slipstream "$@"

#!/usr/bin/env bash
# Install Slipstream as README's table says, as a user does: from the public index, and the index that a row names.
# No local folder of wheels, no constraints, and no settings of this machine for pip, uv or Python.
#
#   bash scripts/install_check.sh [--dry] [--uv] [--pip]     both tools, where none is named
#
# For each row: a new environment, `slipstream doctor` without a failure, one answered call. Where an index cannot give
# a piece, the row says which, and the rest is resolved alone (`uv pip compile`). Exit code 1: a row failed.
# `--dry` installs nothing: it says for each row what would be pasted, and what answers the call.
#
#   ROWS             which of them; default "cpu gpu client"
#   PUBLIC_INDEX     a mirror of the public index; default https://pypi.org/simple
#   TORCH_INDEX      stands in for https://download.pytorch.org/whl/cpu
#   PYTHON           makes the environments; default python3
#   CALL_TIMEOUT_S   until the first answer; default 900
set -uo pipefail
ROOT=$(cd "$(dirname "$0")/.." && pwd)
NAMED_INDEX=https://download.pytorch.org/whl/cpu
: "${PUBLIC_INDEX:=https://pypi.org/simple}" "${TORCH_INDEX:=$NAMED_INDEX}" "${PYTHON:=python3}" "${CALL_TIMEOUT_S:=900}"
PYTHON=$(command -v "$PYTHON")
: "${ROWS:=cpu gpu client}"
DRY='' TOOLS=''
for word in "$@"; do
  case $word in
    --dry) DRY=1 ;;
    --pip | --uv) TOOLS="$TOOLS ${word#--}" ;;
    *) echo "install_check.sh: $word is not known: --dry, --pip, --uv" >&2; exit 2 ;;
  esac
done
: "${TOOLS:=pip uv}"
WORK=$(mktemp -d "${TMPDIR:-/tmp}/slipstream-install.XXXXXX")
RC=0 STACK='' URL=''

end_stack() {
  [ -z "$STACK" ] || { kill -TERM "$STACK" && wait "$STACK"; } 2>/dev/null
  STACK='' URL=''
}
trap 'end_stack; rm -rf "$WORK"' EXIT

# certificates and time-outs are the way to the index; all else of this machine counts for nobody else
for name in $(compgen -e | grep -E '^(PIP_|UV_|PYTHON.|VIRTUAL_ENV|SLIPSTREAM_|OPENAI_)' | grep -vE '^PIP_(CERT|DEFAULT_TIMEOUT)$'); do
  unset "$name"
done
export PIP_CONFIG_FILE=/dev/null PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_INDEX_URL=$PUBLIC_INDEX
export UV_NO_CONFIG=1 UV_DEFAULT_INDEX=$PUBLIC_INDEX HF_HUB_OFFLINE=1

told() { printf '%-4s | %-7s | %-8s | %s\n' "$@"; }
failed() {
  RC=1
  told "$1" "$2" FAILED "$3"
  tail -n 12 "$WORK/log" | cut -c1-300 | sed 's/^/     /'
  [ ! -s "$WORK/call" ] || sed -n '$s/^/     the last call: /p' "$WORK/call" | cut -c1-300
}

# What README's row for a machine tells to paste, for pip or for uv.
command_of() {
  local line
  line=$(grep -F "| **$2" "$ROOT/README.md" | grep -oE '`pip install [^`]+`' | head -1 | tr -d '`')
  [ -n "$line" ] || return 1
  [ "$1" = pip ] || line="uv pip install --index-strategy unsafe-best-match ${line#pip install }"
  printf '%s' "${line//$NAMED_INDEX/$TORCH_INDEX}"
}

# Why the rest of a row is all that can be tried here; nothing: it can be installed.
lacking() {
  case $1 in
    *"$TORCH_INDEX"*) "$WORK/uv/bin/uv" pip compile -q --no-deps --index "$TORCH_INDEX" <(echo torch) >/dev/null 2>"$WORK/log" ||
      echo "PyTorch's index for a CPU cannot be reached" ;;
    *gpu*) [ -e /dev/nvidiactl ] || echo "no NVIDIA GPU is here" ;;
  esac
}

# The row's requirements, resolved for Linux on x86-64. A build of torch that only the named index has counts as torch.
resolved() {
  local words argv=(--python-version 3.11 --python-platform x86_64-manylinux_2_28 --index-strategy unsafe-best-match)
  words=$(grep -oE "'\.[^']*'|\.$" <<<"${1%% --extra*}" | tr -d "'")
  if [[ $1 == *"$TORCH_INDEX"* ]]; then
    echo "torch==$(sed -n 's/^torch==//p' "$ROOT/requirements/constraints-cpu.txt")" >"$WORK/override"
    argv+=(--override "$WORK/override")
  fi
  (cd "$ROOT" && "$WORK/uv/bin/uv" pip compile -q "${argv[@]}" <(echo "slipstream @ file://$ROOT" | sed "s/slipstream/slipstream${words#.}/")) \
    >"$WORK/resolved" 2>"$WORK/log"
}

answered() { # URL MODEL: one call, as an agent makes it
  "$PYTHON" - "$1" "$2" <<'CALL' 2>"$WORK/call"
import json, sys, urllib.request
body = {"model": sys.argv[2], "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
headers = {"content-type": "application/json", "x-slipstream-episode": "installed"}
asked = urllib.request.Request(sys.argv[1] + "/v1/chat/completions", json.dumps(body).encode(), headers)
reply = json.load(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=120))
assert reply["choices"], reply
CALL
}

# Start ENV's program on a free port, and wait until a call is answered.
served() { # ENV MODEL ARGUMENTS…
  local env=$1 model=$2 port end=$((SECONDS + CALL_TIMEOUT_S))
  shift 2
  port=$("$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  end_stack
  (cd "$WORK" && exec "$env/bin/slipstream" "$@" --set "proxy.port=$port" --set "data_dir=$WORK/data-$port") >"$WORK/log" 2>&1 &
  STACK=$! URL=http://127.0.0.1:$port
  until answered "$URL" "$model"; do
    kill -0 "$STACK" 2>/dev/null || { wait "$STACK"; echo "it ended with $?" >>"$WORK/log"; STACK='' URL=''; return 1; }
    [ $SECONDS -lt $end ] || { echo "no answer within $CALL_TIMEOUT_S s" >>"$WORK/log"; return 1; }
    sleep 2
  done
}

# The row's own program looks at the proxy that answers, which may take some seconds more than a call.
told_status() { # ENV
  local end=$((SECONDS + 120))
  until (cd "$WORK" && "$1/bin/slipstream" status --url "$URL") >"$WORK/status" 2>&1; do
    [ $SECONDS -lt $end ] || { cat "$WORK/status" >>"$WORK/log"; return 1; }
    sleep 2
  done
}

# No finding of level `fail`. Where a package is built for another torch, the doctor's own line is pasted, once.
examined() { # ENV
  local fix
  (cd "$WORK" && "$1/bin/slipstream" doctor --set "data_dir=$WORK/none") >"$WORK/log" 2>&1 && return
  grep -q '^FAIL' "$WORK/log" || return 0
  fix=$(grep -oE 'pip uninstall -y [a-z ]+' "$WORK/log" | head -1)
  [ -n "$fix" ] || return 1
  MENDED="; as doctor says: $fix"
  "$1/bin/python" -m ${fix} >>"$WORK/log" 2>&1
  (cd "$WORK" && "$1/bin/slipstream" doctor --set "data_dir=$WORK/none") >"$WORK/log" 2>&1
  ! grep -q '^FAIL' "$WORK/log"
}

# What is asked after the install.
starts() {
  case $1 in
    client) echo "slipstream status --url of a proxy elsewhere, before an engine that always says the same" ;;
    *) echo "slipstream up with examples/inbox/model" ;;
  esac
}

try_row() { # TOOL NAME README'S-ROW
  local tool=$1 name=$2 line why env=$WORK/$1-$2 began=$SECONDS MENDED=''
  : >"$WORK/log"
  : >"$WORK/call"
  line=$(command_of "$tool" "$3") || { failed "$tool" "$name" "README has no row '$3'"; return; }
  [ -z "$DRY" ] || { told "$tool" "$name" dry "$line; then $(starts "$name")"; return; }
  why=$(lacking "$line")
  if [ -n "$why" ]; then
    resolved "$line" || { failed "$tool" "$name" "$line: $why, and the rest does not resolve"; return; }
    told "$tool" "$name" resolved "$why: $(grep -c == "$WORK/resolved") packages resolve, none installed ($line)"
    return
  fi
  "$PYTHON" -m venv "$env" && (cd "$ROOT" && VIRTUAL_ENV=$env PATH="$env/bin:$WORK/uv/bin:$PATH" bash -c "$line") \
    >"$WORK/log" 2>&1 || { failed "$tool" "$name" "$line"; return; }
  examined "$env" || { failed "$tool" "$name" "slipstream doctor, after $line"; return; }
  if [ "$name" = client ]; then
    elsewhere && answered "$URL" "$MODEL"
  else
    MODEL=inbox
    served "$env" inbox up --model "$ROOT/examples/inbox/model" --name inbox
  fi || { failed "$tool" "$name" "one call, after $line"; return; }
  told_status "$env" || { failed "$tool" "$name" "slipstream status --url $URL, after $line"; return; }
  told "$tool" "$name" answered "$((SECONDS - began)) s$MENDED ($line)"
}

# A proxy on another machine: the one that a row before started, or one before an engine that always says the same.
elsewhere() {
  [ -z "$URL" ] || return 0
  local env=$WORK/proxy port
  MODEL=tiny
  "$PYTHON" -m venv "$env" && "$WORK/uv/bin/uv" pip install -q --python "$env" "$ROOT[proxy]" >"$WORK/log" 2>&1 || return 1
  port=$("$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  cat >"$WORK/engine.py" <<'ENGINE'
import asyncio, sys
from tests.support.fake_engine import FakeEngine
async def main():
    await FakeEngine().start(int(sys.argv[1]))
    await asyncio.Event().wait()
asyncio.run(main())
ENGINE
  PYTHONPATH=$ROOT "$env/bin/python" "$WORK/engine.py" "$port" >"$WORK/engine.log" 2>&1 &
  ENGINE=$!
  trap 'end_stack; kill "$ENGINE" 2>/dev/null; rm -rf "$WORK"' EXIT
  served "$env" tiny proxy --set "engine.urls=[\"http://127.0.0.1:$port\"]" --set engine.name=tiny
}

[ -n "$DRY" ] || { "$PYTHON" -m venv "$WORK/uv" && "$WORK/uv/bin/pip" install -q uv >"$WORK/log" 2>&1; } ||
  { failed uv - "pip install uv"; exit 1; }
for tool in $TOOLS; do
  for name in $ROWS; do
    case $name in
      cpu) row="Linux, CPU only" ;;
      gpu) row="Linux with an NVIDIA GPU" ;;
      client) row="macOS or Windows" ;;
      *) row="$name" ;;
    esac
    try_row "$tool" "$name" "$row"
  done
done
exit $RC

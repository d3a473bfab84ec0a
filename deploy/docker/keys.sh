#!/bin/sh
# keys.sh DATA SECRETS: an API key for each part. Hashes go to DATA/keys.json (the proxy reads them), each secret to SECRETS/<name>.
# What is there already stays, so it may run at every start.
set -eu
[ $# -eq 2 ] || { echo "keys.sh DATA SECRETS" >&2; exit 2; }
umask 077
mkdir -p "$1" "$2"
add() {
  [ -s "$2/$3" ] && return 0
  slipstream keys --set data_dir="$1" add "$3" --scopes "$4" | sed -n 1p >"$2/$3.new"
  grep -q '^sk-' "$2/$3.new" || { echo "keys.sh: no key for $3" >&2; exit 1; }
  mv "$2/$3.new" "$2/$3"
}
add "$1" "$2" agent inference,reward
add "$1" "$2" judge judge,reward
add "$1" "$2" trainer trainer
add "$1" "$2" admin admin

#!/bin/sh
# Run the scripts of findings/ (or those that are named), each in a folder of its own, and print a table.
# It ends with 1 if one of them does: a behaviour changed, or a package cannot be had.
set -u
top=$(cd "$(dirname "$0")/.." && pwd)
where=$(mktemp -d)
trap 'rm -rf "$where"' EXIT
failed=0
[ $# -gt 0 ] || set -- "$top"/findings/*.sh
echo "| finding | exit | seconds | behaviour |"
echo "|---|---|---|---|"
for script in "$@"; do
  name=$(basename "$script" .sh)
  mkdir "$where/$name"
  began=$(date +%s)
  code=0
  (cd "$where/$name" && TMPDIR="$where/$name" "$top/findings/$name.sh" >output 2>errors) || code=$?
  sentence=$(sed -n 's/^behaviour: //p' "$where/$name/output")
  echo "| $name | $code | $(($(date +%s) - began)) | $sentence |"
  if [ "$code" -ne 0 ]; then
    failed=1
    tail -n 5 "$where/$name/output" "$where/$name/errors" >&2
  fi
  rm -rf "${where:?}/$name"
done
exit $failed

#!/bin/sh
# What the tests start besides Python: PostgreSQL. Debian or Ubuntu with root or sudo; elsewhere install it by hand.
set -e
found() { ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null 2>&1; }
found && exit 0
if ! command -v apt-get >/dev/null 2>&1; then
  echo "the store's tests need PostgreSQL's server programs (initdb, postgres); please install them" >&2
  exit 1
fi
sudo=""
[ "$(id -u)" = 0 ] || sudo=sudo
for try in 1 2 3; do
  $sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq postgresql >/dev/null && break
  sleep 5
done
found

#!/bin/sh
# What the tests start besides Python: PostgreSQL, Prometheus with promtool, a browser. Debian or Ubuntu with root or sudo; elsewhere install them by hand.
set -e
database() { ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null 2>&1; }
prometheus() { command -v prometheus >/dev/null 2>&1 && command -v promtool >/dev/null 2>&1; }
browser() { command -v chromium >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1; }
database && prometheus && browser && exit 0
if ! command -v apt-get >/dev/null 2>&1; then
  database && echo "without prometheus, promtool and chromium the tests that need them are skipped" >&2 && exit 0
  echo "the store's tests need PostgreSQL's server programs (initdb, postgres); please install them" >&2
  exit 1
fi
sudo=""
[ "$(id -u)" = 0 ] || sudo=sudo
# RUNLEVEL=1: nothing that is installed is started
install() { $sudo env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null; }
for try in 1 2 3; do
  $sudo apt-get update -qq && { database || install --no-install-recommends postgresql; } && { prometheus || install --no-install-recommends prometheus; } && { browser || install chromium; } && break
  sleep 5
done
database

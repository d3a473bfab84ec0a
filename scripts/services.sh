#!/bin/sh
# What the tests start besides Python: PostgreSQL, Prometheus with promtool, a browser, nginx and Caddy. Debian or Ubuntu with root or sudo; elsewhere install them by hand.
# `services.sh nginx` installs the benchmarks' nginx and nothing else.
set -e
PATH=$PATH:/usr/sbin  # where Debian has nginx
database() { ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null 2>&1; }
prometheus() { command -v prometheus >/dev/null 2>&1 && command -v promtool >/dev/null 2>&1; }
browser() { command -v chromium >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1; }
fronts() { command -v nginx >/dev/null 2>&1 && command -v caddy >/dev/null 2>&1; }
nginx_only() { [ "$1" = nginx ]; }
if nginx_only "$1"; then command -v nginx >/dev/null 2>&1 && exit 0; else database && prometheus && browser && fronts && exit 0; fi
if ! command -v apt-get >/dev/null 2>&1; then
  nginx_only "$1" && echo "please install nginx: without it the benchmark has nothing to compare with" >&2 && exit 1
  database && echo "without prometheus, promtool, chromium, nginx and caddy the tests that need them are skipped" >&2 && exit 0
  echo "the store's tests need PostgreSQL's server programs (initdb, postgres); please install them" >&2
  exit 1
fi
sudo=""
[ "$(id -u)" = 0 ] || sudo=sudo
# RUNLEVEL=1: nothing that is installed is started
install() { $sudo env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null; }
if nginx_only "$1"; then
  $sudo apt-get update -qq && install --no-install-recommends nginx-light
  command -v nginx >/dev/null 2>&1
  exit
fi
for try in 1 2 3; do
  $sudo apt-get update -qq && { database || install --no-install-recommends postgresql; } && { prometheus || install --no-install-recommends prometheus; } && { browser || install chromium; } && { fronts || install --no-install-recommends nginx-light caddy; } && break
  sleep 5
done
database

#!/usr/bin/env bash
# Runs a command in a network namespace of its own that has the loopback and nothing else: what it starts, Ray above all,
# can be reached by nobody and can reach nobody. Two commands that shall see each other run inside one call:
#
#     tools/alone.sh .venv-ray/bin/python -m pytest -m ray
set -euo pipefail

refuse() {
  echo "tools/alone.sh: $1" >&2
  exit 1
}

[ $# -gt 0 ] || refuse "give it a command, as in: tools/alone.sh python -m pytest -m ray"
command -v unshare > /dev/null || refuse "unshare is missing; install util-linux"
command -v ip > /dev/null || refuse "ip is missing; install iproute2"
namespace=(unshare --net)
# Whoever is not root needs a user namespace as well, in which he is.
[ "$(id -u)" = 0 ] || namespace+=(--map-root-user)
"${namespace[@]}" ip link set lo up 2> /dev/null \
  || refuse "this machine allows no network namespace of one's own (${namespace[*]}); run it as root, or in a container with --cap-add SYS_ADMIN --cap-add NET_ADMIN"

export RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=disabled OMP_NUM_THREADS=1
exec "${namespace[@]}" -- sh -c 'ip link set lo up && exec "$@"' sh "$@"

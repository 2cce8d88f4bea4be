# shellcheck shell=bash
# Shell functions that the tools share; sourced by them, after `set -euo pipefail`.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# A heading before each thing that a tool does.
say() { printf '\n== %s\n' "$*"; }

# Seconds as "3 min 05 s".
duration() { printf '%d min %02d s' $(($1 / 60)) $(($1 % 60)); }

# install_missing USE…: the packages of tools/packages.txt for these uses; asks apt only for those that are missing.
install_missing() {
  local use package missing=() as_root=()
  for use in "$@"; do
    for package in $(awk -v use="$use" '$1 == use {print $2}' "$root/tools/packages.txt"); do
      [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
    done
  done
  if [ ${#missing[@]} -eq 0 ]; then
    echo "packages: all here"
    return
  fi
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "$(basename "$0"): missing packages, and neither root nor sudo to install them. As root: apt-get install ${missing[*]}" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  "${as_root[@]}" apt-get update -q || echo "apt-get update had errors (above); going on with the lists at hand" >&2
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
}

# build_preset NAME [TARGET…]: configures build/NAME and builds it, or only those targets.
build_preset() {
  local name=$1
  shift
  (cd "$root" && cmake --preset "$name" && cmake --build --preset "$name" ${1:+--target "$@"})
}

#!/bin/bash
# Makes the two packages of this checkout, and has lintian look at the first:
#
#   tools/package.sh [FOLDER]      FOLDER: where they go; default: build/package
#
#   tsprun_VERSION_amd64.deb            for Debian 12: apt install ./tsprun_VERSION_amd64.deb
#   tsprun-VERSION-linux-x86_64.tar.gz  for any x86-64 Linux with glibc 2.36 or later: unpack it anywhere, and run its bin/tsprun
#
# They hold what is built in build/release. Times within them are the last commit's. The exit code is 0 if lintian finds no error.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

if [ $# -gt 1 ] || [[ ${1:-} == -* ]]; then
  echo "package.sh: unknown arguments '$*'; give none, or the folder for the packages" >&2
  exit 2
fi
folder=$(realpath -m "${1:-$root/build/package}")

install_missing build package
say "building (release)"
build_preset release tsprun

say "packages"
umask 022
SOURCE_DATE_EPOCH=$(git -c safe.directory="$root" -C "$root" log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH
rm -f "$folder"/tsprun_*.deb "$folder"/tsprun-*.tar.gz
cpack --config "$root/build/release/CPackConfig.cmake" -B "$folder"
rm -rf "$folder/_CPack_Packages"

say "lintian"
lintian --fail-on error "$folder"/tsprun_*.deb
say "in $folder"
(cd "$folder" && ls -l tsprun_*.deb tsprun-*.tar.gz)

#!/bin/bash
# Unpacks Debian's libraries for aarch64 that a build of tsprun needs into a folder, where the preset `arm` looks for them.
#
#   tools/arm_sysroot.sh [FOLDER]     FOLDER: build/sysroot-arm64 by default
#
# They are the development packages among those for `build` in tools/packages.txt, and those for `arm64`. Nothing is installed: apt works
# with lists, a cache and a state of its own beside it, and takes each package with all that it depends on. (Installed as a second
# architecture of this machine, some of them would remove Slurm and Open MPI.) Does nothing if the folder has these packages.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

if [ $# -gt 1 ]; then
  echo "arm_sysroot.sh: too many arguments; usage: tools/arm_sysroot.sh [FOLDER]" >&2
  exit 2
fi
folder=$(realpath -m "${1:-$root/build/sysroot-arm64}")
apt=$folder.apt
mapfile -t packages < <(awk '($1 == "build" && $2 ~ /-dev$/) || $1 == "arm64" {print $2}' "$root/tools/packages.txt")
if [ "$(cat "$folder/.packages" 2>/dev/null)" = "${packages[*]}" ]; then
  echo "libraries for aarch64: all here"
  exit
fi

if [ -e "$folder" ] && [ ! -e "$folder/.packages" ] && [ -n "$(ls -A "$folder")" ]; then
  echo "arm_sysroot.sh: $folder holds other things, and would be emptied; name a folder that isn't there yet" >&2
  exit 2
fi
say "unpacking ${packages[*]} for aarch64 into $folder"
mkdir -p "$apt/lists/partial" "$apt/archives/partial"
: >"$apt/status"  # nothing is installed, so that apt takes all that these packages need
options=(-q -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o "Dir::State=$apt" -o "Dir::State::lists=$apt/lists"
         -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt" -o "Dir::Cache::archives=$apt/archives")
apt-get "${options[@]}" update || echo "apt-get update had errors (above); going on with the lists at hand" >&2
apt-get "${options[@]}" install -y --download-only --no-install-recommends "${packages[@]}"

rm -rf "$folder" "$folder.new"
mkdir "$folder.new"
for package in "$apt"/archives/*.deb; do dpkg-deb --extract "$package" "$folder.new"; done
# Links to absolute paths would lead to this machine's own files.
find "$folder.new" -type l -lname '/*' | while read -r link; do
  ln -sfrn "$folder.new$(readlink "$link")" "$link"
done
# What installing it does by update-alternatives.
ln -s openblas-pthread/libopenblas.so.0 "$folder.new/usr/lib/aarch64-linux-gnu/libopenblas.so.0"
# Who runs there sees a machine of 1 GiB: each rank reserves addresses for as much as the machine has, and qemu-user notes every page of
# them, for minutes.
mkdir -p "$folder.new/proc"
printf '%-16s%7d kB\n' MemTotal: 1048576 MemFree: 1048576 MemAvailable: 1048576 >"$folder.new/proc/meminfo"
echo "${packages[*]}" >"$folder.new/.packages"
mv "$folder.new" "$folder"
rm -rf "$apt"

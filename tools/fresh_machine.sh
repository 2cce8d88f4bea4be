#!/bin/bash
# Proves that the README's commands work on a fresh machine: makes a minimal Debian in a temporary folder from this machine's own
# package sources, puts a clean clone of this checkout there, and runs tools/demo.sh and tools/test.sh in it as root.
#
#   tools/fresh_machine.sh              those two
#   tools/fresh_machine.sh --full       tools/test.sh --full instead of tools/test.sh
#   tools/fresh_machine.sh --package    instead of both: unpacks the tarball and installs the .deb that tools/package.sh made in
#                                       build/package, each time runs the commands of the README's "Three more", builds
#                                       examples/all_reduce against the latter, removes it, and looks for what is left
#
# The mounts live in a mount and process namespace of their own and vanish with it; the folder is removed however this ends.
# It needs about 3 GB under ${TMPDIR:-/var/tmp}. The exit code is 0 if everything succeeded.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

case "$#:${1:-}" in
  0: | 1:--full) proof=two_commands test_arguments=("$@") ;;
  1:--package) proof=packages ;;
  *)
    echo "fresh_machine.sh: unknown arguments '$*'; give none, --full, or --package" >&2
    exit 2
    ;;
esac
if [ "$proof" = packages ] && ! ls "$root"/build/package/tsprun_*.deb "$root"/build/package/tsprun-*.tar.gz >/dev/null; then
  echo "fresh_machine.sh: --package needs the packages in build/package: run tools/package.sh first" >&2
  exit 2
fi
if [ "$(id -u)" -ne 0 ]; then
  exec sudo --preserve-env=TMPDIR,http_proxy,https_proxy,no_proxy,HTTP_PROXY,HTTPS_PROXY,NO_PROXY "$0" "$@"
fi

codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
checkout=/root/tsprun

# This machine's sources that are Debian's own for this release, as one-line entries: "[signed-by=KEYRING] URI SUITE COMPONENT…".
# Other vendors' sources are left out: what isn't in Debian must not be needed.
debian_sources() {
  local files=()
  shopt -s nullglob
  files=(/etc/apt/sources.list.d/*.sources)
  [ ${#files[@]} -eq 0 ] || awk -v RS= -v FS='\n' '{
      delete field
      for (i = 1; i <= NF; i++) {
        if ($i ~ /^#/) continue
        colon = index($i, ":")
        key = tolower(substr($i, 1, colon - 1)); value = substr($i, colon + 1)
        gsub(/^[ \t]+|[ \t]+$/, "", value)
        field[key] = value
      }
      if (field["types"] !~ /(^| )deb( |$)/ || field["enabled"] == "no") next
      options = field["signed-by"] ~ /^\// ? "[signed-by=" field["signed-by"] "] " : ""
      uris = split(field["uris"], uri, " "); suites = split(field["suites"], suite, " ")
      for (u = 1; u <= uris; u++) for (s = 1; s <= suites; s++) print options uri[u], suite[s], field["components"]
    }' "${files[@]}"
  files=(/etc/apt/sources.list /etc/apt/sources.list.d/*.list)
  sed -n 's/^deb  *//p' "${files[@]}" 2>/dev/null || true
}
only_this_release() {
  awk -v release="$codename" '{
      first = ($1 ~ /^\[/) ? 0 : 1
      for (i = 1; !first && i <= NF; i++) if ($i ~ /\]$/) first = i + 1
      uri = $first; suite = $(first + 1)
      if (uri !~ /\/debian(-security)?\/?$/) next
      if (suite != release && index(suite, release "-") != 1 && index(suite, release "/") != 1) next
      for (i = first + 2; i <= NF; i++) if ($i == "main") { print "deb", $0; next }
    }'
}

# The README's two commands, and the first again.
two_commands() {
  local code begin demo_code test_code
  say "tools/demo.sh"
  begin=$SECONDS demo_code=0
  in_fresh tools/demo.sh || demo_code=$?
  local demo_seconds=$((SECONDS - begin))

  say "tools/test.sh ${test_arguments[*]}"
  begin=$SECONDS test_code=0
  in_fresh "tools/test.sh ${test_arguments[*]}" || test_code=$?
  local test_seconds=$((SECONDS - begin))

  say "tools/demo.sh again"
  begin=$SECONDS code=0
  in_fresh tools/demo.sh >/dev/null || code=$?
  local again_seconds=$((SECONDS - begin))

  say "fresh machine: $codename, $(nproc) cores"
  echo "tools/demo.sh        exit code $demo_code, $(duration $demo_seconds) (installing and building included)"
  echo "tools/test.sh ${test_arguments[*]:-      } exit code $test_code, $(duration $test_seconds)"
  echo "tools/demo.sh again  exit code $code, $(duration $again_seconds)"
  [ $demo_code -eq 0 ] && [ $test_code -eq 0 ] && [ $code -eq 0 ]
}

# three_more FOLDER: doctor, and the commands of the README's "Three more", with the program in FOLDER. The command with a fault must
# fail.
three_more() {
  local line code wanted
  {
    echo "tsprun doctor"
    sed -n '/^## Three more/,/^## /p' "$root/README.md" | sed -n '/^```/,/^```/p' | grep -v -e '^```' -e '^export PATH'
  } >"$TSP_FRESH_ROOT/commands"
  while read -r line; do
    echo "\$ $line"
    code=0 wanted=0
    case $line in *--fault\ kill*) wanted=1 ;; esac
    in_fresh "export PATH=$1:\$PATH; cd /root && $line" </dev/null || code=$?
    if [ $code -ne $wanted ]; then
      echo "ended with $code, and should with $wanted" >&2
      return 1
    fi
  done <"$TSP_FRESH_ROOT/commands"
}

# Paths of what tsprun's package brought that are still there, and aren't another package's.
left_behind() {
  local path
  while read -r path; do
    if [ -e "$fresh$path" ] && ! chroot "$fresh" dpkg-query --search "$path" >/dev/null 2>&1; then echo "$path"; fi
  done
  find "$fresh/etc" "$fresh/usr" "$fresh/var" -xdev -name '*tsprun*' | sed "s|^$fresh||"
}

# The packages that tools/package.sh made.
packages() {
  local packages=/root/packages left
  mkdir "$fresh$packages"
  cp "$root"/build/package/tsprun_*.deb "$root"/build/package/tsprun-*.tar.gz "$fresh$packages/"

  say "the tarball, where no package is installed: of the system's libraries it takes the C library's alone"
  in_fresh "mkdir /root/unpacked && tar -C /root/unpacked -xf $packages/tsprun-*.tar.gz --strip-components 1"
  in_fresh "ldd /root/unpacked/bin/tsprun; ! ldd /root/unpacked/bin/tsprun | grep -v -e /root/unpacked/ -e linux-vdso -e ld-linux -e 'lib[cm]\.so'"
  three_more /root/unpacked/bin
  in_fresh "rm -r /root/unpacked"

  say "the .deb"
  in_fresh "apt-get update -q && apt-get install -y -q $packages/tsprun_*.deb"
  three_more /usr/bin

  say "examples/all_reduce, by find_package(tsprun) and by pkg-config"
  in_fresh "apt-get install -y -q --no-install-recommends cmake g++ make pkg-config"
  in_fresh "set -e; cp -r /usr/share/doc/tsprun/examples/all_reduce /root/example; cd /root/example
    cmake -S . -B build; cmake --build build; tsprun -n 4 run -- build/all_reduce
    g++ -std=c++20 all_reduce.cpp -o by_pkg_config \$(pkg-config --cflags --libs tsprun); tsprun -n 4 run -- ./by_pkg_config"

  say "removing it"
  chroot "$fresh" dpkg-query --listfiles tsprun >"$TSP_FRESH_ROOT/files"
  in_fresh "apt-get remove -y -q tsprun"
  left=$(left_behind <"$TSP_FRESH_ROOT/files")
  if [ -n "$left" ]; then
    printf 'left after removal:\n%s\n' "$left" >&2
    return 1
  fi
  echo "fresh machine: the packages work, and nothing of $(wc -l <"$TSP_FRESH_ROOT/files") paths is left"
}

# Runs inside the namespaces: builds the root, mounts what a machine has, and runs the proof.
inside() {
  local fresh=$1 sources=$2 mirror include=""
  mirror=$(sed 's/\[[^]]*\] //' "$sources" | awk -v suite="$codename" '$3 == suite {print $2; exit}')
  if grep -q ' https:' "$sources"; then include=--include=ca-certificates; fi

  say "debootstrap $codename from $mirror"
  debootstrap --variant=minbase $include "$codename" "$fresh" "$mirror" | tail -n 3

  say "this machine's package sources, proxy and certificates"
  rm -f "$fresh"/etc/apt/sources.list.d/*
  cp "$sources" "$fresh/etc/apt/sources.list"
  cat "$sources"
  local file keyring
  for keyring in $(grep -o 'signed-by=[^] ]*' "$sources" | cut -d= -f2 | sort -u); do
    [ -e "$fresh$keyring" ] || install -D -m 644 "$keyring" "$fresh$keyring"
  done
  for file in $(grep -l 'Acquire::' /etc/apt/apt.conf /etc/apt/apt.conf.d/* 2>/dev/null); do cp "$file" "$fresh/etc/apt/apt.conf.d/"; done
  if [ -d /usr/local/share/ca-certificates ]; then
    mkdir -p "$fresh/usr/local/share/ca-certificates" "$fresh/etc/ssl/certs"
    cp -r /usr/local/share/ca-certificates/. "$fresh/usr/local/share/ca-certificates/"
    [ ! -e /etc/ssl/certs/ca-certificates.crt ] || cp /etc/ssl/certs/ca-certificates.crt "$fresh/etc/ssl/certs/"
  fi
  cp -L /etc/resolv.conf /etc/hosts "$fresh/etc/"

  say "a clean clone of $root"
  git -c safe.directory="$root" -C "$root" status --short | sed 's/^/not in the clone, because not committed: /'
  git clone -q --no-hardlinks "file://$root" "$fresh$checkout"
  git -C "$fresh$checkout" log -1 --oneline

  mount -t proc proc "$fresh/proc"
  mount --rbind /sys "$fresh/sys"
  mount --rbind /dev "$fresh/dev"
  mount -t tmpfs -o mode=1777 tmpfs "$fresh/dev/shm"

  local variable environment=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8)
  for variable in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    [ -z "${!variable:-}" ] || environment+=("$variable=${!variable}")
  done
  in_fresh() { chroot "$fresh" env -i "${environment[@]}" bash -c "cd $checkout && $1"; }

  $proof
}

if [ "${TSP_FRESH_ROOT:-}" ]; then
  inside "$TSP_FRESH_ROOT/root" "$TSP_FRESH_ROOT/sources.list"
  exit
fi

install_missing fresh
work=$(mktemp -d "${TMPDIR:-/var/tmp}/tsp_fresh_machine.XXXXXX")
child=
# Ending unshare ends every process of its namespace; only then is the folder free.
clean_up() {
  if [ -n "$child" ]; then
    { kill "$child" && wait "$child"; } 2>/dev/null || true
  fi
  rm -rf --one-file-system "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
debian_sources | only_this_release >"$work/sources.list"
if ! grep -q . "$work/sources.list"; then
  echo "fresh_machine.sh: no source of Debian $codename under /etc/apt: this machine must be Debian with its own sources" >&2
  exit 1
fi
mkdir "$work/root"

code=0
TSP_FRESH_ROOT=$work unshare --mount --pid --fork --kill-child --propagation private -- "${BASH_SOURCE[0]}" "$@" &
child=$!
wait "$child" || code=$?
child=
exit $code

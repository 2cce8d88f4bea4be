#!/usr/bin/env bash
# Makes a wheel of the backend for PyTorch, for `pip install`:
#
#     tools/wheel.sh [BUILD [FOLDER]]
#
# BUILD: a build folder in which the backend is built (build/release); FOLDER: where the wheel goes (BUILD/wheel). Says the wheel's path. It
# is for the Python and the PyTorch that the backend was built for. Nothing is downloaded: that Python must have pip, setuptools and wheel
# (Debian's python3-pip, python3-setuptools, python3-wheel).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$root/build/release}
folder=${2:-$build/wheel}

cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }
[ -e "$build/CMakeCache.txt" ] || { echo "wheel.sh: $build is no build folder; cmake --preset release makes build/release" >&2; exit 2; }
python=$(cached TSP_PYTORCH_PYTHON)
if [ ! -e "$build/bindings/torch/package/tsprun_torch/_tsprun.so" ]; then
  echo "wheel.sh: the backend isn't built in $build: build the target tsprun_torch; if there is none, the configuration says what is missing" >&2
  exit 2
fi
for module in pip setuptools wheel; do
  "$python" -c "import $module" 2>/dev/null || { echo "wheel.sh: $python has no $module; install Debian's python3-$module, or by that Python's pip" >&2; exit 2; }
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cmake --install "$build" --component torch --strip --prefix "$scratch/installed" >"$scratch/log" || { cat "$scratch/log" >&2; exit 1; }
mkdir "$scratch/source"
cp -r "$scratch/installed/$(cached TSP_PYTHON_DIR)/." "$root/bindings/torch/wheel/." "$root/LICENSE" "$scratch/source"
TSPRUN_VERSION=$(cached CMAKE_PROJECT_VERSION) "$python" -m pip wheel --no-index --no-deps --no-build-isolation --quiet \
  --wheel-dir "$folder" "$scratch/source"
ls -t "$folder"/tsprun_torch-*.whl | head -n 1

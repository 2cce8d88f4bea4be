"""Trains on four ranks under an emulator of another architecture.

    check.py EMULATOR… TSPRUN      such as: check.py qemu-aarch64 -L build/sysroot-arm64 build/arm/launcher/tsprun

One rank and four, over shared memory and over TCP with TLS, with OpenBLAS and without, have the same losses in f64 within rounding, the
audit holds, and the report names the kernels of aarch64. Prints what doesn't hold, and exits with 1 if anything doesn't.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

LEVEL = "neon"
TRAIN = "train --config nano --seq 64 --batch 2 --steps 3 --dtype f64".split()
FAILED = []


def expect(holds, what):
    if not holds:
        FAILED.append(what)
        print("FAILED:", what)


def train(command, folder, name, words, environment):
    """Returns the losses, the report and what was said on stderr."""
    report = folder / f"{name}.json"
    run = subprocess.run([*command, *words, *TRAIN, "--data", str(folder / "text"), "--json", str(report)], env=environment,
                         capture_output=True, text=True, timeout=300, check=False)
    expect(run.returncode == 0, f"{name}: ended by {run.returncode}: {run.stdout}{run.stderr}")
    expect("audit: memory and traffic equal the forecast" in run.stdout, f"{name}: no audit in {run.stdout}{run.stderr}")
    data = json.loads(report.read_text())
    losses = [step["loss"] for step in data.get("steps", [])]
    print(f"{name}: kernels {data.get('kernels')}, gemm {data.get('gemm')}, losses {losses}")
    return losses, data, run.stderr


def main():
    command = sys.argv[1:]
    # They would name a core of this machine's architecture.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OPENBLAS_", "TSP_"))}
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        (folder / "text").write_text("".join(f"{n * n} is the square of {n}. " for n in range(400)))
        # A folder that is searched first, and holds a file by the library's name that is none.
        (folder / "libopenblas.so.0").write_text("nothing")
        without = dict(environment, LD_LIBRARY_PATH=place)
        alone, data, _ = train(command, folder, "one rank", ["-n", "1"], environment)
        expect(len(alone) == 3 and alone[2] < alone[0], f"three losses that fall: {alone}")
        expect(data.get("kernels") == LEVEL, f"kernels {data.get('kernels')}, not {LEVEL}")
        expect(str(data.get("gemm")).startswith("openblas 0."), f"gemm {data.get('gemm')}, not OpenBLAS")
        for name, words, surroundings in (("four ranks over shm", ["--layout", "tsp=4", "--intra", "shm"], environment),
                                          ("four ranks over tcp with TLS", ["--layout", "tp=2,sp=2", "--intra", "tcp", "--tls", "on"],
                                           environment),
                                          ("four ranks without OpenBLAS", ["--layout", "zero3=4"], without)):
            losses, data, said = train(command, folder, name, words, surroundings)
            expect(len(losses) == 3 and all(abs(a - b) < 1e-9 for a, b in zip(losses, alone)), f"{name}: losses {losses}, not {alone}")
            fallen_back = data.get("gemm") == "tsprun" and "--gemm auto: can't load OpenBLAS" in said
            expect(fallen_back == (surroundings is without), f"{name}: gemm {data.get('gemm')}, and said: {said}")
    sys.exit(1 if FAILED else 0)


main()

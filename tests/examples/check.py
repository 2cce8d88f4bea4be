#!/usr/bin/env python3
"""Runs the examples that aren't C++, as their users would.

Usage: check.py EXAMPLE TSPRUN. EXAMPLE is break_and_resume, save_and_go_on, slurm, kubernetes or cluster. Exits with 1, and says why, if something is
wrong; with 77 where Python can't read YAML.

There is neither Slurm nor Kubernetes here. Their part is played by this script: it starts one tsprun for each task or pod, with the
variables that srun or the manifest would give it, on this machine. The training is cut to two steps.
"""

import contextlib
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
SECONDS = 300


def expect(condition, what):
    if not condition:
        sys.exit(f"{what}")


def equal(actual, expected, what):
    expect(actual == expected, f"{what}: {actual!r}, where {expected!r} is expected")


reserved = []


def free_port():
    """A port below those of outgoing connections that no other test gets as long as this process lives: an abstract socket of its name
    reserves it, as tests/support/free_port.h does."""
    for i in range(10000):
        port = 10000 + (os.getpid() * 7 + i) % 10000
        mine = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError), socket.socket() as any_socket:
            mine.bind(f"\0port-of-a-test-{port}")
            any_socket.bind(("127.0.0.1", port))
            reserved.append(mine)
            return port
    sys.exit("no port is free")


def environment(tsprun, home, **more):
    """This process's environment, without what other starters have left, and with tsprun in PATH."""
    kept = {name: value for name, value in os.environ.items() if not re.match(r"SLURM_|PET_|MASTER_|OMPI_|PMI|TSP_", name)}
    return kept | {"PATH": f"{home}:{pathlib.Path(tsprun).parent}:{kept['PATH']}", "HOME": str(home), "TSPRUN": tsprun} | more


def text(folder):
    (folder / "book.txt").write_text("All work and no play makes a dull boy. " * 500)


def shortened(words):
    """A training's words with two steps, and a checkpoint after each."""
    line = "\n".join(words)
    for option, value in (("steps", 2), ("save-every", 1)):
        line, times = re.subn(rf"^--{option}([=\n])\S+$", rf"--{option}\g<1>{value}", line, flags=re.MULTILINE)
        equal(times, 1, f"--{option} in {words}")
    return line.split("\n")


def run_together(commands, folder):
    """Starts (words, environment) pairs at once; all must succeed. Returns what each printed."""
    started = [subprocess.Popen(words, env=variables, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
               for words, variables in commands]
    try:
        outputs = [each.communicate(timeout=SECONDS)[0] for each in started]
    finally:
        for each in started:
            each.kill()
    for each, output in zip(started, outputs):
        equal(each.returncode, 0, f"exit code of {each.args}, which printed\n{output}\n")
    return outputs


def break_and_resume(tsprun, folder):
    script = EXAMPLES / "break_and_resume.sh"
    done = subprocess.run([script, folder / "here"], env=environment(tsprun, folder), capture_output=True, text=True, timeout=SECONDS)
    equal(done.returncode, 0, f"exit code of {script}, which printed\n{done.stdout}{done.stderr}\n")
    expect("rank 2 was killed by signal 9" in done.stderr, f"no verdict in\n{done.stderr}")
    expect("going on from" in done.stdout and "step 8/8" in done.stdout, f"no resumed training in\n{done.stdout}")
    saved = sorted(each.name for each in (folder / "here" / "run").glob("step-*"))
    equal(saved, ["step-000003", "step-000006", "step-000008"], "checkpoints")


def save_and_go_on(tsprun, folder):
    """Runs the line with which the manual's page begins, twice, and ends it as Slurm does at a time limit: by two signals."""
    page = (EXAMPLES.parent / "docs/how-to/save-and-go-on.md").read_text()
    line = re.search(r"^```\ntsprun (.*)\n```$", page, re.MULTILINE).group(1)
    text(folder)
    step = 0
    for time in range(2):
        job = subprocess.Popen([tsprun, *line.split()], env=environment(tsprun, folder), cwd=folder, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
        try:
            said = next((each for each in job.stdout if "loss" in each), None)
            for _ in range(2):
                job.send_signal(signal.SIGTERM)
                select.select([], [], [], 0.03)
            errors = job.communicate(timeout=SECONDS)[1]
        finally:
            job.kill()
        expect(said is not None, f"no step of {line}, which printed\n{errors}")
        equal(job.returncode, 143, f"exit code of {line}, which printed\n{errors}\n")
        saved = re.search(r"step-(\d+) holds the run after (\d+) of 5000 steps; it goes on with: tsprun", errors)
        expect(saved and int(saved.group(1)) == int(saved.group(2)) > step, f"no step after {step} is saved:\n{errors}")
        step = int(saved.group(1))


def slurm(tsprun, folder):
    """Runs the batch script with a srun and a scontrol that only write down how they were called."""
    script = EXAMPLES / "slurm.sbatch"
    asked = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", script.read_text(), re.MULTILINE))
    for name, code in (("srun", "exit ${SRUN_CODE}"), ("scontrol", "")):
        (folder / name).write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >"$HOME/{name}.words"\n{code}\n')
        (folder / name).chmod(0o755)
    requeued = folder / "scontrol.words"
    for code in (1, 143):
        variables = environment(tsprun, folder, SRUN_CODE=str(code), SLURM_JOB_ID="4711")
        equal(subprocess.run(["bash", script], env=variables, timeout=SECONDS).returncode, code, "the script's exit code")
        equal(requeued.exists(), code == 143, f"requeued after {code}")
    equal(requeued.read_text().split(), ["requeue", "4711"], "scontrol's words")

    words = (folder / "srun.words").read_text().splitlines()
    words = shortened(words[words.index("tsprun"):])
    text(folder)
    nodes = int(asked["nodes"])
    port = free_port()
    steps = []
    for node in range(nodes):
        steps.append((words, environment(tsprun, folder, SLURM_JOB_ID="4711", SLURM_STEP_ID="0", SLURM_PROCID=str(node),
                                         SLURM_STEP_NUM_TASKS=str(nodes * int(asked["ntasks-per-node"])),
                                         SLURM_STEP_NUM_NODES=str(nodes), SLURM_NODEID=str(node),
                                         SLURM_STEP_NODELIST="localhost,elsewhere", MASTER_PORT=str(port))))
    run_together(steps, folder)
    expect((folder / "runs/book/step-000002").is_dir(), "no checkpoint after the last step")


def kubernetes(tsprun, folder):
    try:
        import yaml
    except ImportError:
        print("skipped: python3-yaml isn't installed")
        sys.exit(77)
    service, job = yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())
    equal((service["apiVersion"], service["kind"], job["apiVersion"], job["kind"]), ("v1", "Service", "batch/v1", "Job"), "kinds")
    equal(service["spec"]["clusterIP"], "None", "clusterIP of a headless Service")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    container, = pod["containers"]
    labels = job["spec"]["template"]["metadata"]["labels"]
    expect(service["spec"]["selector"].items() <= labels.items(), "the Service doesn't select the Job's pods")
    equal(pod["subdomain"], service["metadata"]["name"], "subdomain of the pods")
    equal(spec["completionMode"], "Indexed", "completionMode")
    equal(spec["parallelism"], spec["completions"], "parallelism")
    mounts = {each["name"] for each in container["volumeMounts"]}
    equal(mounts, {each["name"] for each in pod["volumes"]}, "volumes that are mounted")

    given = {each["name"]: each.get("value") for each in container["env"]}
    index, = (each for each in container["env"] if "valueFrom" in each)
    equal(index, {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {
        "fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}}, "the pod's number")
    equal(given["PET_NNODES"], str(spec["completions"]), "PET_NNODES")
    equal(given["PET_MASTER_ADDR"], f"{job['metadata']['name']}-0.{service['metadata']['name']}", "name of pod 0")
    expect(all(value is None or isinstance(value, str) for value in given.values()), "values of variables must be strings")

    text(folder)
    secret = folder / "secret"
    secret.write_text("sixteen bytes and some more")
    secret.chmod(pod["volumes"][0]["secret"]["defaultMode"])
    words = [f"--secret-file={secret}" if word.startswith("--secret-file=") else word for word in container["args"]]
    here = {"PET_MASTER_ADDR": "localhost", "PET_MASTER_PORT": str(free_port())}
    pods = [(container["command"] + shortened(words), environment(tsprun, folder, **given | here | {"PET_NODE_RANK": str(number)}))
            for number in range(spec["completions"])]
    run_together(pods, folder)
    expect((folder / "runs/book/step-000002").is_dir(), "no checkpoint after the last step")


def cluster(tsprun, folder):
    """Lets plan search with the machine file, by the command that the documents show."""
    page = (EXAMPLES.parent / "docs/how-to/describe-your-cluster.md").read_text()
    command, = re.findall(r"^tsprun (plan --search .*--machine examples/cluster\.json .*)$", page, re.MULTILINE)
    done = subprocess.run([tsprun, *command.split()], env=environment(tsprun, folder), cwd=EXAMPLES.parent, capture_output=True,
                          text=True, timeout=SECONDS)
    equal(done.returncode, 0, f"exit code of plan, which printed\n{done.stdout}{done.stderr}\n")
    expect(re.search(r"^fits .*tokens/s", done.stdout, re.MULTILINE), f"no layout fits:\n{done.stdout}")


def main():
    example, tsprun = sys.argv[1], str(pathlib.Path(sys.argv[2]).absolute())
    check = {"break_and_resume": break_and_resume, "save_and_go_on": save_and_go_on, "slurm": slurm, "kubernetes": kubernetes, "cluster": cluster}[example]
    with tempfile.TemporaryDirectory() as folder:
        check(tsprun, pathlib.Path(folder))


main()

"""What all attacks share: starting tsprun, judging its end, and the list of attacks itself.

An attack is a function with a docstring: the first line of it is the promise, in words. It gets a `Bench` and raises Broken if the
promise doesn't hold. `@attack` puts it on the list.
"""
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import time


class Broken(Exception):
    """A promise that doesn't hold: what was seen instead."""


class NotHere(Exception):
    """The attack can't be made on this machine: why."""


@dataclasses.dataclass
class Attack:
    """One entry of the list."""

    name: str
    promise: str
    run: object


ATTACKS = []


def attack(function):
    """Registers a function as an attack."""
    ATTACKS.append(Attack(function.__name__, function.__doc__.strip().splitlines()[0], function))
    return function


def need(condition, seen):
    """Raises Broken with `seen` unless `condition` holds."""
    if not condition:
        raise Broken(seen)


class Run:
    """A tsprun that was started: its end, its output, its report."""

    def __init__(self, process, report, began):
        self.process, self._report, self._began = process, report, began
        self.out = self.err = ""
        self.seconds = 0.0

    def ranks(self, count, seconds=20):
        """The process ids of the ranks, by rank, once all `count` live."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            except OSError:
                children = []
            if len(children) == count:
                return [int(pid) for pid in children]
            if self.process.poll() is not None:
                raise Broken(f"tsprun ended before it had {count} ranks: {self.end().err}")
            time.sleep(0.01)
        raise Broken(f"no {count} ranks after {seconds} s")

    def end(self, seconds=60):
        """Waits for the end; a job that doesn't end by then is a broken promise."""
        try:
            self.out, self.err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as late:
            self.process.kill()
            self.out, self.err = self.process.communicate()
            raise Broken(f"still running after {seconds} s; it had said: {self.err[-500:]}") from late
        self.seconds = time.monotonic() - self._began
        return self

    @property
    def code(self):
        """The exit code; negative if tsprun died of a signal."""
        return self.process.returncode

    @property
    def report(self):
        """The --json report, or {} where none was written."""
        try:
            return json.loads(self._report.read_text())
        except (OSError, ValueError):
            return {}

    def failure(self):
        """The report's failure, {} if there is none."""
        return self.report.get("failure") or {}

    def __str__(self):
        return f"exit {self.code} after {self.seconds:.1f} s, failure {self.failure() or None}, said: {self.err.strip()[-700:]!r}"


class Bench:
    """Where an attack works: a folder of its own, a text, the program."""

    def __init__(self, tsprun, folder):
        self.tsprun, self.folder = os.path.abspath(tsprun), pathlib.Path(folder)
        self.text = self.folder / "text.txt"
        self.text.write_bytes(b"The quick brown fox jumps over the lazy dog, again and again. " * 400)
        self._runs, self._started = 0, []

    def end_all(self):
        """Kills what an attack left running."""
        for run in self._started:
            if run.process.poll() is None:
                run.process.kill()
                run.process.communicate()

    def start(self, *words, cwd=None, environment=None, before=None):
        """Starts tsprun with these words; `before` runs in the child before exec."""
        self._runs += 1
        report = self.folder / f"report{self._runs}.json"
        return self.spawn([self.tsprun, "--json", str(report), *map(str, words)], report, cwd, environment, before)

    def spawn(self, command, report, cwd=None, environment=None, before=None):
        """The same for any command line, such as tsprun in a network namespace."""
        process = subprocess.Popen(command, cwd=cwd or self.folder, env={**os.environ, **(environment or {})}, text=True, preexec_fn=before,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._started.append(Run(process, report, time.monotonic()))
        return self._started[-1]

    def train(self, *words, config="nano"):
        """The words of a small training."""
        return ["train", "--config", config, "--data", self.text, "--batch", 2, "--seq", 32, *words]


def kill(pid, number=signal.SIGKILL):
    """os.kill that doesn't mind if the process is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass

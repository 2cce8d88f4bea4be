#!/usr/bin/env python3
"""Runs a command line on several small machines with real RDMA devices (soft-RoCE), joined by one Ethernet. No RDMA card needed.

QEMU boots them (software emulation) from Debian's kernel; each sees this machine's file system read-only, under a tmpfs, at the same
paths, and the results folder, writable, as $SHARE. The command runs as root in the current directory with NODE (0…N-1), NODES and
NICS set; machine i has 10.77.0.(i+1) on eth0 with the device rxe0, with --nics 2 also 10.78.0.(i+1) on eth1 with rxe1.

    tools/rdma_lab/lab.py -n 2 -- 'if [ $NODE = 0 ]; then ib_write_lat -x 1; else sleep 3; ib_write_lat -x 1 10.77.0.1; fi'

Lines appended to $SHARE/control, from here or from within a machine, change the weather while the command runs; --at does the same:

    loss 0.01    each frame is lost with this probability
    delay 5      each frame takes 5 ms more
    longest 1500 longer frames are lost, as by a switch of this MTU
    cut 1        machine 1 neither hears nor is heard;  join 1 ends that
    cut 1:0      the same of its NIC eth0 alone;        join 1:0 ends that
    cap 1 4.5    each NIC of machine 1 carries at most 4.5 MiB a second each way; 0 ends that
    cap 1:0 4.5  the same of its NIC eth0 alone
    pause 1      machine 1 stands still;                resume 1 ends that
    kill 1       machine 1 is gone; that it didn't finish is no failure then

$SHARE/obeyed has the number of lines that have been carried out.

The results folder keeps node<i>.out, node<i>.err, node<i>.console (the kernel's words), result.json (how each command ended, when, how
many frames the weather took, and how long a machine took none of those that waited for it) and, of a command that failed,
node<i>.network (what the machine's NICs had seen, and whether it reached the others). Exit code: 0 if every command ended
with 0; 1 if one didn't; 2 for wrong arguments; 3 if the laboratory can't run here; 124 if the time limit struck.
"""

import argparse
import ctypes
import fcntl
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import ethernet  # noqa: E402
import image  # noqa: E402

PREFIX = "rdma-lab."
ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
MOST_ADDRESS = 107  # bytes of a unix socket's path


def die_with_parent():
    """In a child: no QEMU outlives the laboratory, however that ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


class Folder:
    """A temporary folder with a lock file, held as long as this process lives. Where another one's lock can be taken, its laboratory
    was killed: the folder is removed."""

    def __init__(self):
        self.remove_stale()
        self.path = pathlib.Path(tempfile.mkdtemp(prefix=PREFIX))
        self.lock = self.try_lock(self.path / "lock", os.O_CREAT)
        longest = len(os.fsencode(self.path / "e0-h0"))
        if self.lock is None or longest > MOST_ADDRESS:
            self.remove()
            place = f"TMPDIR {tempfile.gettempdir()}"
            if self.lock is None:
                raise image.CannotRun(f"{place}: files there can't be locked; try TMPDIR=/tmp")
            raise image.CannotRun(
                f"{place}: too long a path: that of a socket would have {longest} bytes, {MOST_ADDRESS} are the most; try TMPDIR=/tmp"
            )

    @staticmethod
    def try_lock(path, flags=0):
        """The open lock file, or None if somebody holds it or there is none."""
        try:
            # Machines don't inherit it: they die with this process, but some moments later.
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError:
            os.close(descriptor)
            return None

    @classmethod
    def remove_stale(cls):
        """A folder without a lock file isn't ours to judge, nor is one of another user."""
        for folder in pathlib.Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            lock = None if folder.is_symlink() else cls.try_lock(folder / "lock")
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)

    def remove(self):
        shutil.rmtree(self.path, ignore_errors=True)
        if self.lock is not None:
            os.close(self.lock)

    def __enter__(self):
        return self.path

    def __exit__(self, *_):
        self.remove()


class Machine:
    """One QEMU process and what is known of its command."""

    def __init__(self, number, share):
        self.number = number
        self.share = share
        self.process = None
        self.killed = False
        self.exit_code = None
        self.booted = None
        self.ended = None
        self.read = {"out": 0, "err": 0}
        self.partial = {"out": b"", "err": b""}

    def start(self, arguments):
        with open(self.share / f"node{self.number}.console", "wb") as console:
            self.process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT, preexec_fn=die_with_parent
            )

    def running(self):
        return self.process is not None and self.process.poll() is None

    def kept_waiting(self):
        """Seconds for which other processes had the core that one of the machine's threads wanted; 0 where the kernel doesn't count them."""
        longest = 0
        for thread in pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/schedstat"):
            try:
                longest = max(longest, int(thread.read_text(encoding="ascii").split()[1]))
            except (OSError, IndexError, ValueError):
                pass
        return longest / 1e9

    def signal(self, number):
        if self.running():
            self.process.send_signal(number)

    def show_new_output(self):
        """Prints whole lines that the command has written since the last look."""
        for stream, target in (("out", sys.stdout), ("err", sys.stderr)):
            try:
                with open(self.share / f"node{self.number}.{stream}", "rb") as file:
                    file.seek(self.read[stream])
                    new = file.read()
            except FileNotFoundError:
                continue
            self.read[stream] += len(new)
            *lines, self.partial[stream] = (self.partial[stream] + new).split(b"\n")
            for line in lines:
                print(f"node{self.number}| {line.decode(errors='replace')}", file=target, flush=True)

    def look(self, now):
        self.show_new_output()
        if self.booted is None and (self.share / f".lab/ready{self.number}").exists():
            self.booted = now
        if self.exit_code is None:
            try:
                self.exit_code = int((self.share / f".lab/exit{self.number}").read_text(encoding="ascii"))
                self.ended = now
                self.signal(signal.SIGKILL)  # its work is done; powering off in good order takes seconds
                self.show_new_output()
            except (FileNotFoundError, ValueError):
                pass


class Lab:
    """N machines, their Ethernet, and the clock over them."""

    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.share = pathlib.Path(options.share or folder / "share").resolve()
        self.weather = ethernet.Weather(options.loss, options.delay / 1000)
        self.machines = [Machine(number, self.share) for number in range(options.machines)]
        self.hubs = []
        self.control_read = 0
        self.schedule = sorted(options.at, key=lambda item: item[0])

    def prepare(self):
        self.share.mkdir(parents=True, exist_ok=True)
        lab = self.share / ".lab"
        shutil.rmtree(lab, ignore_errors=True)
        lab.mkdir()
        for old in [self.share / "control", self.share / "obeyed", self.share / "result.json", *self.share.glob("node[0-9].*")]:
            old.unlink(missing_ok=True)
        (self.share / "control").touch()
        shutil.copy(image.HERE / "guest.sh", lab / "guest.sh")
        command = self.options.command
        line = command[0] if len(command) == 1 else shlex.join(command)
        (lab / "command.sh").write_text(f"cd {shlex.quote(os.getcwd())}\n{line}\n", encoding="utf-8")

    def boot(self):
        version, root = image.kernel(self.options.cache)
        disk = self.folder / "initrd"
        image.ram_disk(version, root, disk)
        for nic in range(self.options.nics):
            self.hubs.append(ethernet.Hub(self.folder, f"e{nic}", nic, len(self.machines), self.weather))
        # A signal that ends the laboratory waits until this knows of all processes. Other threads keep it blocked: it would else reach
        # this one by way of them.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            for hub in self.hubs:
                hub.start()
            for machine in self.machines:
                machine.start(self.qemu(machine.number, image.boot_file(version, root), disk))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)

    def qemu(self, number, kernel, disk):
        options = self.options
        arguments = [image.program("qemu-system-x86_64"), "-M", "q35,accel=tcg"]
        # Without strings moved byte by byte (erms, fsrm), which emulation makes slower than plain loops: messages arrive a tenth faster.
        arguments += ["-cpu", "max,-erms,-fsrm"]
        arguments += ["-smp", str(options.cores), "-m", str(options.memory), "-nographic", "-no-reboot"]
        arguments += ["-kernel", str(kernel), "-initrd", str(disk), "-append"]
        arguments += [
            # Unless told not to, the kernel panics if its timer doesn't tick within a moment, in which a busy host may not emulate it.
            f"console=ttyS0 quiet mitigations=off no_timer_check panic=-1 lab.node={number} lab.nodes={len(self.machines)} lab.nics={options.nics}"
        ]
        arguments += ["-fsdev", "local,id=r,path=/,security_model=none,readonly=on,multidevs=remap"]
        arguments += ["-device", "virtio-9p-pci,fsdev=r,mount_tag=root"]
        arguments += ["-fsdev", f"local,id=w,path={self.share},security_model=none"]
        arguments += ["-device", "virtio-9p-pci,fsdev=w,mount_tag=share"]
        for nic, hub in enumerate(self.hubs):
            sides = f"local.type=unix,local.path={hub.machine_side(number)},remote.type=unix,remote.path={hub.hub_side(number)}"
            arguments += ["-netdev", f"dgram,id=n{nic},{sides}"]
            arguments += ["-device", f"virtio-net-pci,netdev=n{nic},romfile=,mac=52:54:00:00:{nic:02x}:{number + 1:02x}"]
        return arguments

    def obey(self, line):
        """Carries out one line of weather. A wrong one is reported, not fatal: it may have come from within a machine."""
        words = line.split()
        try:
            word, value = words[0], words[1]
            if word == "loss":
                self.weather.loss = float(value)
            elif word == "delay":
                self.weather.delay = float(value) / 1000
            elif word == "longest":
                self.weather.longest = int(value)
            else:
                number, nic = self.place(value)
                machine = self.machines[number]
                if word == "cut":
                    self.weather.cut.add((number, nic))
                elif word == "join":
                    self.weather.cut.discard((number, nic))
                elif word == "cap":
                    rate = float(words[2]) * 2**20
                    if rate < 0:
                        raise ValueError(rate)
                    # The hubs' threads read the table: it is replaced, not changed.
                    others = {place: cap for place, cap in self.weather.caps.items() if place != (number, nic)}
                    self.weather.caps = {**others, (number, nic): rate} if rate > 0 else others
                elif nic is not None:
                    raise ValueError(value)
                elif word == "pause":
                    machine.signal(signal.SIGSTOP)
                elif word == "resume":
                    machine.signal(signal.SIGCONT)
                elif word == "kill":
                    machine.killed = True
                    machine.signal(signal.SIGKILL)
                else:
                    raise ValueError(word)
            print(f"lab: {line.strip()}", flush=True)
        except (IndexError, ValueError):
            print(f"lab: can't obey {line.strip()!r}", file=sys.stderr, flush=True)

    def place(self, text):
        """The machine and NIC that "1:0" names; for "1" the NIC is None."""
        machine, _, nic = text.partition(":")
        place = int(machine), int(nic) if nic else None
        if not 0 <= place[0] < len(self.machines) or not 0 <= (place[1] or 0) < self.options.nics:  # -1 is Python's last
            raise IndexError(text)
        return place

    def read_control(self):
        text = (self.share / "control").read_text(encoding="utf-8", errors="replace")
        lines = text.split("\n")[:-1]
        for line in lines[self.control_read :]:
            if line.strip():
                self.obey(line)
        if len(lines) == self.control_read:
            return
        self.control_read = len(lines)
        # Renamed when it is whole: machines read it.
        (self.share / "obeyed.new").write_text(f"{self.control_read}\n", encoding="utf-8")
        (self.share / "obeyed.new").rename(self.share / "obeyed")

    def watch(self):
        """Until all have ended or the time is up; true if it wasn't. While this machine is busy with other things theirs goes on more
        slowly: what a machine waits for a core counts for nothing."""
        begin = time.monotonic()
        waited = 0
        while True:
            time.sleep(0.05)
            now = time.monotonic() - begin
            running = [machine for machine in self.machines if machine.running()]
            for machine in self.machines:
                machine.look(now)
            self.read_control()
            booted = [machine.booted for machine in self.machines]
            if None not in booted:
                while self.schedule and now - max(booted) >= self.schedule[0][0]:
                    self.obey(self.schedule.pop(0)[1])
            if not running:
                return True
            waited = max([waited, *(machine.kept_waiting() for machine in running)])
            if now - waited > self.options.timeout:
                return False

    def stop(self):
        for machine in self.machines:
            if machine.running():
                machine.process.kill()
            if machine.process is not None:
                machine.process.wait()
        for hub in self.hubs:
            hub.ending = True
        for hub in self.hubs:
            if hub.ident is not None:
                hub.join()

    def report(self, in_time):
        nodes = []
        for machine in self.machines:
            if machine.killed:
                state = "killed"
            elif machine.exit_code is not None:
                state = "exited"
            else:
                state = "ended without a word" if in_time else "still running at the time limit"
            nodes.append({"state": state, "exit_code": machine.exit_code, "booted_s": machine.booted, "ended_s": machine.ended})
            code = "" if machine.exit_code is None else f" with {machine.exit_code}"
            print(f"lab: node {machine.number} {state}{code}", flush=True)
            if state.startswith("ended"):
                print(f"lab: see {self.share}/node{machine.number}.console", file=sys.stderr)
        hubs = [
            {"frames": hub.frames, "lost": hub.lost, "undelivered": hub.undelivered, "longest_wait_s": round(hub.longest_wait, 3)}
            for hub in self.hubs
        ]
        (self.share / "result.json").write_text(json.dumps({"in_time": in_time, "nodes": nodes, "ethernet": hubs}, indent=1) + "\n")
        shutil.rmtree(self.share / ".lab", ignore_errors=True)
        good = all(machine.killed or machine.exit_code == 0 for machine in self.machines)
        return 124 if not in_time else 0 if good else 1


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--machines", type=int, default=2, help="2 to 8 (default 2)")
    parser.add_argument("--nics", type=int, default=1, choices=(1, 2), help="network cards a machine (default 1)")
    parser.add_argument("--cores", type=int, default=1, help="processors a machine (default 1)")
    parser.add_argument("--memory", type=int, default=1024, metavar="MIB", help="memory a machine (default 1024)")
    parser.add_argument("--timeout", type=float, default=120, metavar="SECONDS", help="for everything, boot included, while this machine has cores for them (default 120)")
    parser.add_argument("--share", metavar="FOLDER", help="the results folder (default: a temporary one, removed at the end)")
    parser.add_argument("--loss", type=float, default=0, metavar="P", help="probability that a frame is lost")
    parser.add_argument("--delay", type=float, default=0, metavar="MS", help="what each frame takes longer")
    parser.add_argument("--at", action="append", default=[], metavar="'SECONDS LINE'", help="weather, counted from the last boot")
    parser.add_argument("--check", action="store_true", help="only say whether the laboratory can run here (0 or 3)")
    parser.add_argument(
        "--cache", type=pathlib.Path, default=pathlib.Path.home() / ".cache/tsp-rdma-lab", metavar="FOLDER", help="for the kernel"
    )
    parser.add_argument("command", nargs="*", help="after --: one shell line, or a program and its arguments")
    options = parser.parse_args()
    if not options.check and not options.command:
        parser.error("no command")
    if not 2 <= options.machines <= 8:
        parser.error("--machines: 2 to 8")
    if options.cores < 1 or options.memory < 256 or not 0 <= options.loss <= 1 or options.delay < 0:
        parser.error("--cores from 1, --memory from 256, --loss from 0 to 1, --delay from 0")
    try:
        options.at = [(float(item.split(None, 1)[0]), item.split(None, 1)[1]) for item in options.at]
    except (ValueError, IndexError):
        parser.error("--at: 'SECONDS LINE' is expected, as in --at '5 cut 1'")
    return options


def end_by_signal(number, _frame):
    raise SystemExit(128 + number)


def main():
    options = arguments()
    for number in ENDING:
        signal.signal(number, end_by_signal)
    try:
        image.check_programs()
        if options.check:
            version, _ = image.kernel(options.cache)
            print(f"lab: can run, with kernel {version}")
            return 0
        with Folder() as folder:
            lab = Lab(options, folder)
            in_time = False
            try:
                lab.prepare()
                lab.boot()
                in_time = lab.watch()
            finally:
                lab.stop()
            for machine in lab.machines:
                machine.show_new_output()
            return lab.report(in_time)
    except image.CannotRun as reason:
        print(f"lab: can't run here: {reason}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())

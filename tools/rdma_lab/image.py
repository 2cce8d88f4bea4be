"""What the machines boot: Debian's kernel (unpacked from its package into a cache, never installed) and a small initial RAM disk."""

import fcntl
import gzip
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# In the order of loading; rdma_rxe needs crc32_generic to be there first.
MODULES = "crc32_generic virtio_pci 9pnet_virtio 9p virtio_net rdma_rxe ib_uverbs rdma_ucm virtio_rng overlay".split()
# program -> Debian package
PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "cpio": "cpio",
    "modprobe": "kmod",
    "depmod": "kmod",
    "ip": "iproute2",
    "rdma": "iproute2",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
}
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


class CannotRun(Exception):
    """The laboratory can't run on this machine; the text says why and what to do."""


def program(name):
    """The path of a program, or CannotRun."""
    path = shutil.which(name, path=PATH)
    if path is None:
        raise CannotRun(f"{name} isn't installed: apt-get install {PROGRAMS[name]}")
    return path


def check_programs():
    """All missing programs in one message."""
    missing = sorted({package for name, package in PROGRAMS.items() if shutil.which(name, path=PATH) is None})
    if missing:
        raise CannotRun("missing packages: apt-get install " + " ".join(missing))


def _run(arguments, what, **options):
    result = subprocess.run(arguments, capture_output=True, text=True, check=False, **options)
    if result.returncode != 0:
        last = (result.stderr.strip() or result.stdout.strip() or f"exit code {result.returncode}").splitlines()[-1]
        raise CannotRun(f"{what}: {last}")
    return result.stdout


def _newest_kernel():
    depends = _run(["apt-cache", "depends", "linux-image-amd64"], "apt-cache depends linux-image-amd64")
    found = re.search(r"Depends: linux-image-(\S+)", depends)
    if found is None:
        raise CannotRun("apt knows no kernel package (linux-image-amd64): run apt-get update")
    return found.group(1)


def kernel(cache):
    """The kernel's version and the folder into which its package is unpacked."""
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unpacked = sorted(cache.glob("*/boot/vmlinuz-*"), key=lambda path: path.stat().st_mtime)
        if unpacked:  # what is here is good: no need to ask apt, or the network
            version = unpacked[-1].name.removeprefix("vmlinuz-")
            return version, unpacked[-1].parent.parent
        version = _newest_kernel()
        with tempfile.TemporaryDirectory(dir=cache) as work:
            _run(["apt-get", "download", f"linux-image-{version}"], f"apt-get download linux-image-{version}", cwd=work)
            package = next(pathlib.Path(work).glob("*.deb"))
            root = pathlib.Path(work) / "root"
            _run(["dpkg-deb", "-x", str(package), str(root)], f"unpacking {package.name}")
            _run([program("depmod"), "-b", str(root), version], "depmod")
            root.rename(cache / version)
        return version, cache / version


def ram_disk(version, root, target):
    """Writes the initial RAM disk: busybox, the modules in order, init.sh."""
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        image = pathlib.Path(work)
        for name in ("bin", "modules", "proc", "sys", "dev", "newroot"):
            (image / name).mkdir()
        busybox = program("busybox")
        if _is_dynamic(busybox):
            raise CannotRun(f"{busybox} isn't statically linked: apt-get install busybox-static")
        shutil.copy(busybox, image / "bin/busybox")
        order = []
        for module in MODULES:
            lines = _run([program("modprobe"), "-d", str(root), "-S", version, "--show-depends", module], f"kernel module {module}")
            for file in re.findall(r"^insmod (\S+)", lines, re.MULTILINE):
                name = os.path.basename(file)
                if name not in order:
                    order.append(name)
                    shutil.copy(file, image / "modules" / name)
        (image / "modules/order").write_text("\n".join(order) + "\n", encoding="ascii")
        shutil.copy(HERE / "init.sh", image / "init")
        (image / "init").chmod(0o755)
        names = "\n".join(sorted(str(path.relative_to(image)) for path in image.rglob("*"))) + "\n"
        archive = subprocess.run(
            [program("cpio"), "-o", "-H", "newc", "--quiet"], cwd=image, input=names.encode(), capture_output=True, check=True
        )
        with open(target, "wb") as file:
            file.write(gzip.compress(archive.stdout, 1))


def _is_dynamic(path):
    with open(path, "rb") as file:
        return b"/ld-linux" in file.read(4096)

#!/usr/bin/env python3
"""Runs the tests that PyTorch ships for any backend (torch/testing/_internal/distributed/distributed_test.py) on tsprun.

    upstream.py [--as-gloo] [--only TEXT] [--passed FILE]

Three ranks a test, forked, which meet through a file. A test passes, skips itself (no GPU, say), or fails; each that fails must
stand in upstream_exceptions.txt with its reason, and each that stands there must fail. Exit code 0 if so. Many tests skip unless
the backend is called "gloo": --as-gloo lets our process group bear that name. --passed leaves out the tests that FILE names, if
there is such a file, and adds those that passed to it: a second pass under the other name runs the rest alone.
"""

import os
import sys
import tempfile
import types
import unittest

#: tests that pass under each name, with PyTorch 1.13 and 2.11: skipped ones must not hide a failure
PASS_AT_LEAST = {"1": {"tsprun": 80, "gloo": 110}, "2": {"tsprun": 66, "gloo": 84}}


def argument(name):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else ""


as_gloo = "--as-gloo" in sys.argv
only = argument("--only")
passed_file = argument("--passed")
scratch = tempfile.TemporaryDirectory()
tempfile.tempdir = scratch.name  # where torch's tests leave the files by which ranks meet
os.environ.update(BACKEND="gloo" if as_gloo else "tsprun", WORLD_SIZE="3", TEMP_DIR=scratch.name, TSP_TIMEOUT="10",
                  OMP_NUM_THREADS="1", TORCH_CPP_LOG_LEVEL="ERROR", PYTORCH_TEST_WITH_SLOW="0")
for folder in ("barrier", "test_dir", "init_dir"):
    os.makedirs(os.path.join(scratch.name, folder), exist_ok=True)

# Debian has no package of expecttest, from which torch's class of tests derives; no test here compares texts by it.
expecttest = types.ModuleType("expecttest")
expecttest.TestCase, expecttest.ACCEPT = unittest.TestCase, False
sys.modules["expecttest"] = expecttest

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import tsprun_torch  # noqa: E402
from torch.distributed import distributed_c10d as c10d  # noqa: E402
from torch.testing._internal import common_distributed  # noqa: E402

torch.set_num_threads(1)
common_distributed.TIMEOUT_DEFAULT = 60
for feature in ("ddp", "subgroup", "plugin"):
    common_distributed.DistTestCases.backend_feature[feature].add("tsprun")
if as_gloo:
    members_of_group = []
    helper = c10d._new_process_group_helper

    def noting_members(size, rank, members, *rest, **named):
        members_of_group[:] = members
        return helper(size, rank, members, *rest, **named)

    class AsGloo(type):
        """What torch takes for gloo's class."""

        def __call__(cls, store, rank, size, timeout):
            options = types.SimpleNamespace(store=store, group_rank=rank, group_size=size, timeout=timeout,
                                            global_ranks_in_group=list(members_of_group))
            return tsprun_torch._make_group(options, None, "gloo")

        def __instancecheck__(cls, group):
            return isinstance(group, tsprun_torch.ProcessGroupTsprun)

    class Ours(metaclass=AsGloo):
        pass

    tsprun_torch.ProcessGroupTsprun.options = types.SimpleNamespace()  # torch 2.x notes a group's name in its gloo's options
    c10d._new_process_group_helper = noting_members
    c10d.ProcessGroupGloo = Ours

torch_major = torch.__version__.partition(".")[0]
if torch_major == "1":
    # Its ReplicatedTensor, which these tests let DDP use, can't be imported under Python 3.11.
    from torch.nn.parallel import _replicated_tensor_ddp_utils as replicated_tensor_ddp

    replicated_tensor_ddp._set_ddp_with_replicated_tensor = lambda use: None

from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend  # noqa: E402


class Upstream(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)  # spawned ones would import torch anew


def expected_failures():
    here = os.path.dirname(os.path.abspath(__file__))
    sections = ("both", os.environ["BACKEND"], os.environ["BACKEND"] + " " + torch_major)
    listed, current = {}, None
    with open(os.path.join(here, "upstream_exceptions.txt")) as lines:
        for line in lines:
            line = line.strip()
            if line.startswith("["):
                current = line.strip("[]")
            elif line and not line.startswith("#") and current in sections:
                name, _, reason = line.partition(":")
                listed[name.strip()] = reason.strip()
    return listed


class Result(unittest.TextTestResult):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.passed = []

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed.append(test)


def name_of(test):
    return test.id().rsplit(".", 1)[-1]


if __name__ == "__main__":
    listed = expected_failures()
    before = set()
    if os.path.exists(passed_file):
        with open(passed_file) as lines:
            before = set(lines.read().split())
    tests = unittest.defaultTestLoader.loadTestsFromTestCase(Upstream)
    suite = unittest.TestSuite(t for t in tests if only in t.id() and name_of(t) not in before)
    result = unittest.TextTestRunner(resultclass=Result, verbosity=2).run(suite)
    failed = {name_of(test) for test, _ in result.failures + result.errors}
    passed = {name_of(test) for test in result.passed}
    wrong = sorted(failed - listed.keys()) + sorted(name + " (listed, but passes)" for name in passed & listed.keys())
    least = PASS_AT_LEAST[torch_major][os.environ["BACKEND"]]
    if passed_file:
        with open(passed_file, "a") as lines:
            lines.writelines(f"{name}\n" for name in sorted(passed))
    if not only and len(passed) + len(before) < least:
        wrong.append(f"only {len(passed)} tests passed beside {len(before)} before, not {least}: do others skip themselves?")
    print(f"passed {len(passed)}, skipped {len(result.skipped)}, failed as listed {len(failed & listed.keys())}")
    if wrong:
        print("unexpected: " + ", ".join(wrong))
    sys.exit(1 if wrong else 0)

"""A user's checks with ReFrame: with GPUs, without, in an array, and one that fails."""

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import run_before, sanity_function

COUNT = "echo gpus=$(echo $CUDA_VISIBLE_DEVICES | tr , ' ' | wc -w)"


class Check(rfm.RunOnlyRegressionTest):
    """A job of five minutes that prints how many GPUs it sees."""

    valid_systems = ["here:main"]
    valid_prog_environs = ["builtin"]
    executable = "true"
    time_limit = "5m"
    postrun_cmds = [COUNT]
    num_tasks = 1
    options: list[str] = []
    gpus = 0

    @run_before("run")
    def give_options(self):
        """Pass the options on to sbatch."""
        self.job.options = list(self.options)

    @sanity_function
    def sees_its_gpus(self):
        """Check that every job prints the number of GPUs that it requested."""
        found = sn.extractall(r"gpus=(\d+)", self.stdout, 1, int)
        return sn.all([sn.assert_gt(sn.count(found), 0), sn.all(sn.map(self.is_right, found))])

    def is_right(self, number):
        """Return whether a job sees the number of GPUs that it requested."""
        return number == self.gpus


@rfm.simple_test
class OnAGpu(Check):
    """One GPU of any type."""

    options = ["--gpus=1", "#HADAR --hadar-model=a-model-of-my-own"]
    gpus = 1


@rfm.simple_test
class OnTwoGpus(Check):
    """Two GPUs of one node."""

    options = ["--gpus-per-node=2"]
    gpus = 2


@rfm.simple_test
class InAnArray(Check):
    """Three tasks with one GPU each."""

    options = ["--gpus=1", "--array=0-2"]
    gpus = 1


@rfm.simple_test
class OnNone(Check):
    """No GPU."""


@rfm.simple_test
class Broken(Check):
    """A job that sees one GPU where two are expected, and ends with status 3."""

    options = ["--gpus=1"]
    gpus = 2
    postrun_cmds = [COUNT, "exit 3"]

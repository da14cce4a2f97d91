"""Command lines of sbatch 22.05 with options of every group, as users write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# No character here is special to sbatch, and each is special to some shell.
HOSTILE = "a b\"c'd\\e\t$(touch x)`y`;|&<>*?[]{}!~#é🦀\\n%"
SCRIPT = "#!/bin/bash\n#SBATCH --job-name=from-script --mem=200\n# a comment\n\necho $1\n"
# With exec no shell waits: a child that it has just started could outlive a scancel.
WRAP = "--wrap=exec sleep 600"


@dataclass(frozen=True)
class Invocation:
    """A user's call: arguments, environment variables and standard input."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    stdin: str | None = None


def wrapped(*words: str, **environment: str) -> Invocation:
    """Return a call with a wrapped command instead of a script."""
    return Invocation((*words, WRAP), environment)


# They need the files job.sh, nodes.txt, env.bin and one with a HOSTILE name in a directory.
INVOCATIONS = (
    # The script: a file, its arguments, standard input, a command; by path and through PATH.
    Invocation(("job.sh",)),
    Invocation(("./job.sh", "--lr=1", "-x", "--wrap=no", ":", "--hadar-nonsense")),
    Invocation(("--", "job.sh", "--", "-HN2")),
    Invocation((f"dir/{HOSTILE}", HOSTILE, "", " ")),
    Invocation((), stdin=SCRIPT),
    Invocation(("-J", "stdin"), stdin=SCRIPT + "#SBATCH --mem=7\n\xff"),
    Invocation(("/dev/stdin", "arg"), stdin=SCRIPT),
    Invocation(("--wrap", f"echo '{HOSTILE}'; true")),
    Invocation(("-Dsub", "job.sh")),
    Invocation(("--chdir", "/tmp", "only-on-path"), {"PATH": "bin:/usr/bin:/bin"}),
    # Names, comments, mail and accounts.
    wrapped("-J", HOSTILE),
    wrapped(f"--job-name={HOSTILE}"),
    wrapped("--comment", HOSTILE),
    wrapped("--comment=one", "--comment=two"),
    wrapped("--mail-type=END,FAIL", "--mail-user=a@b.c"),
    wrapped("-A", "physics", "--wckey=w", "--qos=normal"),
    # Partition, time limit, begin time, priority, dependencies.
    wrapped("-p", "main"),
    wrapped("--part=main", "-t1-2:03:04"),
    wrapped(SBATCH_PARTITION="main", SBATCH_TIMELIMIT="90", SBATCH_JOB_NAME="env"),
    wrapped("-t", "10", "--time-min=5"),
    wrapped("-b", "2030-01-01T12:00"),
    wrapped("--deadline=2035-01-01", "--time=60", "--delay-boot=5"),
    wrapped("-H"),
    wrapped("--nice=100"),
    wrapped("--nice"),
    wrapped("--priority=1234"),
    wrapped("--dependency=singleton", "--kill-on-invalid-dep=yes"),
    wrapped("-d", "afterany:{first}", "-J", "after"),
    wrapped("--cluster-constraint=x"),
    # Nodes, tasks, processors.
    wrapped("-N2"),
    wrapped("--nodes=1-3", "--use-min-nodes"),
    wrapped("-n", "4", "-c2"),
    wrapped("--ntasks=4", "--ntasks-per-node=2", "--overcommit"),
    wrapped("--ntasks-per-core=1", "--ntasks-per-socket=2", "--hint=nomultithread"),
    wrapped("-B", "1:4:1", "--mincpus=2"),
    wrapped("--sockets-per-node=1", "--cores-per-socket=2", "--threads-per-core=1"),
    wrapped("--distribution=block:cyclic", "-n4"),
    wrapped("--exclusive"),
    wrapped("--exclusive=user"),
    wrapped("-s", "--contiguous", "--spread-job"),
    wrapped("--core-spec=1"),
    wrapped("--thread-spec=1"),
    wrapped("--switches=1@10:00", "--wait-all-nodes=1"),
    wrapped("-HN2", "--reboot"),
    wrapped("-w", "n1"),
    wrapped("--exclude", "n[2-3]"),
    wrapped("-C", "v100|p100", "--batch=v100"),
    wrapped("-F", "nodes.txt"),
    # Memory and disk.
    wrapped("--mem=1G", "--tmp=10"),
    wrapped("--mem-per-cpu=64", "--mem-bind=local"),
    wrapped("--gpus=2", "--mem-per-gpu=100", "--cpus-per-gpu=2"),
    # GPUs.
    wrapped("-G", "v100:2"),
    wrapped("--gpus=1", "--gpu-bind=closest", "--gpu-freq=low"),
    wrapped("--gpus-per-node=k80:2", "-N", "1"),
    wrapped("--gres=gpu:p100:2", "--gres-flags=disable-binding"),
    wrapped("--gpus-per-task=1", "--ntasks=2", SBATCH_GPUS_PER_TASK="2"),
    wrapped("--sockets-per-node=1", "--gpus-per-socket=1"),
    wrapped(SBATCH_GPUS="2"),
    # Arrays and heterogeneous jobs.
    wrapped("-a", "0-7:2%2"),
    wrapped("--array=1,3,5-6", "-o", "out-%A_%a", "-e", "err-%A_%a"),
    wrapped(SBATCH_ARRAY_INX="0-3"),
    Invocation(("-N1", ":", "-N2", "job.sh")),
    # Input, output and environment.
    wrapped("-o", "out %j.txt", "-e", "/dev/null", "-i", "job.sh"),
    wrapped("--open-mode=append", "--output=x/%u"),
    wrapped("--export=NONE"),
    wrapped("--export=ALL,A=1,B=x=y,C"),
    wrapped("--export-file=env.bin", "--get-user-env"),
    wrapped("--propagate=CORE,NOFILE", "--acctg-freq=task=10", "--profile=none"),
    # Signals, requeues and failures of nodes.
    wrapped("--signal=B:USR1@60"),
    wrapped("--no-requeue"),
    wrapped("--requeue", "-k"),
    wrapped("--no-kill=off"),
    wrapped(SBATCH_NO_REQUEUE="1", SBATCH_OPEN_MODE="append"),
    # Verbosity and other options.
    wrapped("--parsable"),
    wrapped("-v", "-v"),
    wrapped("-Q"),
    wrapped("--ignore-pbs", "--power=level", "--network=x", "--cpu-freq=low"),
    wrapped("-L", "nothing-of-that-name:1"),
    wrapped("--test-only"),
    wrapped("--bb=capacity=1", "--mcs-label=x", "--container=/none"),
    # Calls that sbatch refuses.
    wrapped("--mem=lots"),
    wrapped("--unheard-of=1"),
    wrapped("--par", "x"),
    wrapped("-N", "many"),
    wrapped("--partition=no-such"),
    wrapped("--reservation=no-such"),
    Invocation(("no-such-script",)),
    Invocation((WRAP, "job.sh")),
    Invocation((), stdin="echo no interpreter\n"),
    Invocation((), stdin=""),
)

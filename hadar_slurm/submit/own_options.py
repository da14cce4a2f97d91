"""The options of hadar-sbatch itself: their names and help. Pure. Imports little."""

from __future__ import annotations

from collections.abc import Iterable

from hadar_slurm.errors import JobSpecError
from hadar_slurm.submit.options import SbatchOption

PREFIX = "--hadar-"

USAGE = """\
usage: hadar-sbatch [--hadar-OPTION ...] [any sbatch option] [script [args]]

Submits with sbatch. If hadard is alive, the job is held until hadard chooses its GPUs. One line on
standard error says whether hadard places the job, or why not; --quiet and --parsable silence it.

  --hadar-model NAME          the model, e.g. ResNet-50: jobs with the same model and batch size
                              share one throughput (default: the job's name)
  --hadar-batch-size N        the model's batch size
  --hadar-throughput T=R,...  instead of a model: steps/s of the whole gang on each GPU type,
                              e.g. v100=12.5,k80=1.3
  --hadar-steps N             total number of training steps; default: the steps that take --time
                              on the slowest GPU type
  --hadar-gang GANG           GPUs: 4 (any uniform layout) or 2x2 (GPUs per node x nodes);
                              default: the GPUs of sbatch's own options, else 1; with
                              --hadar-copies also the GPUs of a copy by type: v100:1,k80:4
  --hadar-types T,...         the GPU types that the job may have, e.g. a100,h100 (default: the type
                              that sbatch's own options name, else all whole GPUs)
  --hadar-gpu-memory SIZE     the least memory of a GPU, e.g. 40G
  --hadar-compute-capability C  the least compute capability (CUDA) of a GPU, e.g. 8.0
  --hadar-time-on TYPE        the GPU type for which --time is given: on a slower type the job gets
                              a longer time limit, within the partition's maximum
  --hadar-checkpoint LEVEL    yes: the job saves on USR1 and resumes, so it may be migrated;
                              restart:20m: it saves at times and resumes, and may be requeued
                              without a signal when it loses at most that (default no)
  --hadar-copies N|auto       train in up to N copies on separate nodes (HadarE); auto: one for
                              each suitable node. Needs hadar_slurm.runtime in the script
  --hadar-cores T:N,...       the cores of a copy by GPU type, e.g. v100:4,k80:16
  --hadar-mem T:SIZE,...      the memory of a copy by GPU type, e.g. v100:16G,k80:64G
  --hadar-restart-cost S      seconds that a migration costs the job (default: the site's)
  --hadar-dry-run             submit nothing; print the sbatch call and a preview by GPU type
  --hadar-json                print one JSON object: the submitted job, or the dry run
  --no-hadar                  submit with plain sbatch, and ignore #HADAR lines; HADAR=no in the
                              environment does the same
  --hadar-help, --help, -h    list these options

The same options may be given in the script on #HADAR lines; the command line wins. All other
options are sbatch's and are passed on unchanged; `sbatch --help` lists them."""

KNOWN = (
    *"model batch-size throughput steps gang types gpu-memory compute-capability".split(),
    *"time-on copies cores mem checkpoint restart-cost".split(),
)
DRY_RUN, JSON, NO_HADAR, HELP = "hadar-dry-run", "hadar-json", "no-hadar", "hadar-help"
FLAGS = (DRY_RUN, JSON, NO_HADAR, HELP)
# Not an option: everything is sbatch's matter, and nothing is said.
PASSED_ON = "passed-on"
WITH_VALUE = frozenset(PREFIX[2:] + name for name in KNOWN)


def take_own_options(
    options: Iterable[SbatchOption],
) -> tuple[dict[str, str], frozenset[str], list[SbatchOption]]:
    """Return hadar-sbatch's own options, its flags, and the options that are sbatch's."""
    found: dict[str, str] = {}
    flags = set()
    rest = []
    for option in options:
        if option.name in FLAGS:
            if option.value is not None:
                raise JobSpecError(f"--{option.name} takes no value, {option.value!r} is given")
            flags.add(option.name)
        elif option.name in WITH_VALUE:
            if option.value is None:
                raise JobSpecError(f"--{option.name} needs a value")
            found[option.name.removeprefix(PREFIX[2:])] = option.value
        elif option.name.startswith(("hadar", "no-hadar")):
            # Takes longer to import than all the rest.
            from difflib import get_close_matches

            near = get_close_matches(option.name, [*WITH_VALUE, *FLAGS], n=1, cutoff=0.0)[0]
            raise JobSpecError(f"unknown option --{option.name}; the nearest is --{near}")
        else:
            rest.append(option)
    return found, frozenset(flags), rest

"""The words of README.md around the figures."""

OPENING = """\
# Beside Gavel and Sia, in Sia's own simulator

Written by `side_by_side.py`; change [comparison_page.py](comparison_page.py) or
[page_words.py](page_words.py), not this.

The simulator, the workloads and the cluster are those of Sia's artifact (SOSP 2023,
github.com/siasosp23/artifacts at aaf7a0d, directory `sia-simulator`): 160 jobs in 8 hours on two
nodes with 8 A100, three with 8 RTX 2080 Ti and six with 4 T4; gangs of 1 to 16; step times measured
by its authors. Its own program runs, `multi_simulator.py`, with its own options. For our policies
[one_run.py](one_run.py) puts a subclass in the place of its Gavel, and
[translation.py](translation.py) translates.

```
git clone https://github.com/siasosp23/artifacts sia && git -C sia checkout aaf7a0d
python3.11 -m venv sia-venv
sia-venv/bin/pip install -e . -r benchmarks/sia/requirements.txt
nice sia-venv/bin/python benchmarks/sia/side_by_side.py sia
sia-venv/bin/python benchmarks/sia/side_by_side.py sia --bounds
```

What is recorded is not run again; `--write-only` writes this page from it.

[as_trace.py](as_trace.py) writes workloads of the artifact as traces for `hadar compare`, so that
they are also played beside plain Slurm
([full.md](../results/full.md#workloads-of-sias-and-shockwaves-artifacts)):

```
sia-venv/bin/python benchmarks/sia/as_trace.py sia ../shared/data/artifacts/sia newtrace-{1..10}
sia-venv/bin/python benchmarks/sia/as_trace.py --scale 8 sia ../shared/data/artifacts/sia8 \\
  scale/scale_8x-1
```
"""

BOUND = """\
No job ends before it has trained alone, from the first round after its submission, on the type and
placement on which it is fastest ([bounds.py](bounds.py), [bounds.jsonl](bounds.jsonl)). This is the
latest of these ends; that GPUs are shared is left out.
"""

NOTES = """\
## What is compared

* **Who chooses batch sizes.** In this simulator a job does, after every epoch, by its own models of
  throughput and gradients, whatever the scheduler; for Gavel the simulator switches that off, for
  Sia it does not. So schedulers compare where the jobs are the same: `hadar` with `gavel` and
  `sia_fix-batch`, `hadar-tuned` with `sia_fix`. Numbers of GPUs are those of the workload in all.
* **Batch size fixed.** A job has the batch size of the workload. Gavel and our policies see the
  same: its steps, those done, and its steps/s on each GPU type. Gavel is the artifact's, with its
  default objective (greatest total throughput) and its round of 360 s. `sia_fix-batch` is `sia_fix`
  with batch sizes fixed by the call with which the simulator fixes them for Gavel.
* **Batch size tuned.** `sia_fix` is the artifact's Sia for fixed numbers of GPUs, with the options
  in the first line of `sia_fix.py`. `hadar-tuned` is `hadar` with the same jobs, which tune by the
  same code ([batch_sizes.py](batch_sizes.py)).
* **What `hadar-tuned` sees is more than `sia_fix` does.** Both see a job's age and restarts.
  `sia_fix` sees its models, fitted to the step times and the gradients that it has measured so far;
  other types go by a ratio of the artifact, and before the first start all types are equal. It sees
  no work left. `hadar-tuned` sees the work left, in steps of the initial batch size as the
  simulator counts progress, and on each type the mean speed at which it will be done: the measured
  step times of that type, also where the job has never run, with the gradients of all epochs left,
  at the best batch size of each. That is what Gavel sees of jobs with fixed batch sizes, whose
  number of steps contains the gradients of all epochs as well. Jobs then do a little worse, since
  they tune by models of their own and begin with the initial batch size.
* **`hadar-tuned-now`** sees less: the goodput of the present epoch only, as jobs could report it
  that had been profiled on each type. It rises as a job trains, so the time left of long jobs is
  overestimated at first, and falls faster than time passes: two that are alike may take turns on
  GPUs, at a restart each. What `hadar-tuned` sees was chosen over a form like this one after runs
  of that on saturn 1 to 4 and philly 3.
* **Choosing and judging.** The constants of `hadar` were chosen with our own simulator on saturn 1
  and 2 and philly 1 and 3, among others (docs/results.md); no constant was chosen with this one.
* **Elastic.** `sia`, with the options of `run_experiment.sh`, also chooses numbers of GPUs: another
  problem again, and no claim is made beside it.
* **Empty cells** are runs that have not been made.
* **Metrics** are those of the artifact's `print_run_stats.py`: JCT from submission to end, makespan
  from the first submission to the last end. Every start takes the job's restart time, 25 to 250 s.
* **The simulator** lets GPUs that become free within a round idle until its end, for all
  schedulers. A gang that changes nodes, but neither its type nor its GPUs by node, pays nothing.
* **Steps as shown.** The steps that the simulator shows differ from those that it then trains, by
  up to 10 % for yolov3 and 7 % for cifar10. Nothing corrects them, for Gavel or for ours. Where
  batch sizes are tuned, the work shown is what is trained.
* **Throughputs.** Ours, from the simulator's measured step times, equal those of its Gavel in every
  digit for all 18 kinds of jobs with fixed batch sizes on all three types.
* **Short cuts.** Answers of some functions of the simulator are kept ([one_run.py](one_run.py)).
  With and without this, Gavel and `hadar` have the same figures on saturn-1.
* **Solver.** The integer programs of `sia_fix` and `sia` are solved by HiGHS, to a gap of 0.01 %,
  for at most 60 s: with GLPK, which `sia_fix` asks for without a gap, one round with 50 jobs took
  up to a minute.
"""

"""One Slurm configuration in both spellings: lines of slurm.conf, and words of policy `slurm`."""

from __future__ import annotations

from slurm_fidelity.jobs import MINUTE_S, JobList, ListedJob

WEIGHT_FAIRSHARE, WEIGHT_AGE = 10_000, 3_000
# Fair tree divides a rank by the number of all associations, also of those without any job: here
# root's and that of the cluster's first account.
_IDLE_ASSOCIATIONS = 2
# After a requeue a job waits for as long as its credential was valid, and a second.
REQUEUE_DELAY_S = 121
# Slurm's own unit of all three is the minute.
CALC_PERIOD_MIN = 1
_WEEK_S = 7 * 86_400
_SCHEDULER = {
    "batch_sched_delay": "0",
    "sched_min_interval": "100000",
    "sched_interval": "1",
    "bf_interval": "1",
    "bf_resolution": "1",
    "bf_max_job_test": "500",
    "default_queue_depth": "1000",
}


def week_min(jobs: JobList) -> int:
    """Return the minutes in which a week of the list is played."""
    return max(1, round(_WEEK_S / jobs.compression / MINUTE_S))


def slurm_conf(jobs: JobList) -> str:
    """Return the further lines of slurm.conf."""
    scheduler = {**_SCHEDULER, "bf_window": str(jobs.bf_window_min)}
    words = [*(f"{name}={value}" for name, value in scheduler.items()), "bf_continue"]
    lines = [
        "SchedulerType=sched/backfill",
        f"SchedulerParameters={','.join(words)}",
        "MinJobAge=3600",
        "KillWait=1",
    ]
    if jobs.preempts:
        preempt_type = "preempt/qos" if jobs.has_qos else "preempt/partition_prio"
        mode = {"suspend": "SUSPEND,GANG"}.get(jobs.preempts, jobs.preempts.upper())
        lines += [f"PreemptType={preempt_type}", f"PreemptMode={mode}"]
    if not jobs.has_qos:
        lines += [
            f"PartitionName={qos(job)} Nodes=ALL PriorityTier={job.tier + 1} MaxTime=INFINITE"
            for job in one_of_each_tier(jobs)
        ]
    if jobs.fairshare == "no":
        return "\n".join([*lines, "PriorityType=priority/basic"]) + "\n"
    lines += [
        "PriorityType=priority/multifactor",
        f"PriorityWeightFairshare={WEIGHT_FAIRSHARE}",
        f"PriorityWeightAge={WEIGHT_AGE}",
        f"PriorityMaxAge={week_min(jobs)}",
        f"PriorityDecayHalfLife={week_min(jobs)}",
        f"PriorityCalcPeriod={CALC_PERIOD_MIN}",
    ]
    lines += [f"PriorityWeightQOS={jobs.weight_qos}"] * (jobs.weight_qos > 0)
    lines += ["PriorityFlags=NO_FAIR_TREE"] * (jobs.fairshare == "classic")
    return "\n".join(lines) + "\n"


def policy_name(jobs: JobList, *, slurm: str = "", looks_always: bool = False) -> str:
    """Return the policy with the same settings, in seconds of the list; `slurm` is the version.

    Such a Slurm looks at its queue once in a real second, or, with `looks_always`, at any time.
    """
    minute_s = MINUTE_S * jobs.compression
    words = [
        "slurm",
        jobs.form,
        jobs.choice,
        f"fairshare={jobs.fairshare}",
        f"bf_window={jobs.bf_window_min * minute_s}s",
        f"bf_resolution={jobs.compression}s",
        f"test_window={30 * jobs.compression}s",
        f"bf_interval={0 if looks_always else jobs.compression}s",
    ]
    if slurm:
        words.append(f"release={'.'.join(slurm.split('.')[:2])}")
    words += qos_words(jobs)
    if jobs.weight_qos:
        # Without QOS the order of the ranks decides, whatever they are divided by.
        users = len({job.user for job in jobs.jobs})
        share = round(WEIGHT_FAIRSHARE * users / (users + _IDLE_ASSOCIATIONS))
        words += [f"weight_qos={jobs.weight_qos}", f"weight_fairshare={share}"]
    if jobs.fairshare == "no":
        words.append("weight_age=0")
    else:
        words += [
            f"calc_period={CALC_PERIOD_MIN * minute_s}s",
            f"max_age={week_min(jobs) * minute_s}s",
            f"half_life={week_min(jobs) * minute_s}s",
        ]
    return ":".join(words)


def qos_words(jobs: JobList) -> list[str]:
    """Return the words for the tiers and for what those above may do with others."""
    words = []
    if tiers := "+".join(f"{qos(job)}={job.tier}" for job in one_of_each_tier(jobs)):
        words.append(f"qos={tiers}")
    if jobs.preempts:
        words.append(f"preempt={jobs.preempts}")
    if jobs.preempts == "requeue":
        words.append(f"requeue_delay={REQUEUE_DELAY_S * jobs.compression}s")
    return words


def qos(job: ListedJob) -> str:
    """Return the name of the job's tier, of its partition or QOS; "" for the lowest."""
    return f"tier{job.tier}" if job.tier else ""


def one_of_each_tier(jobs: JobList) -> list[ListedJob]:
    """Return a job of each tier above the lowest, the lowest first."""
    found = {job.tier: job for job in jobs.jobs if job.tier}
    return [found[tier] for tier in sorted(found)]


def sbatch_options(job: ListedJob, jobs: JobList) -> list[str]:
    """Return what the job's user writes."""
    options = [f"--time={job.limit_min}"]
    if job.tier:
        options.append(f"--{'qos' if jobs.has_qos else 'partition'}={qos(job)}")
    if jobs.form == "gpus":
        options.append(f"--gpus={job.gpus}")
    else:
        options += [f"--nodes={job.nodes}", f"--gpus-per-node={job.gpus // job.nodes}"]
    allowed = jobs.allowed(job)
    if jobs.form == "list" and len(allowed) > 1:
        options.append(f"--constraint=[{'|'.join(allowed)}]")
    elif len(allowed) < len(jobs.pools):
        options.append(f"--constraint={'|'.join(allowed)}")
    return options

"""The constants of the policy that were chosen by measurement, with their day and what chose them.

benchmarks/results/tuning.md has what 30 % more or less of each costs on workloads that did not
choose it. Bounds of rounding and of the sizes of programs are none of these.
"""

# What a second of waiting counts, beside one of run time, since shorter jobs come meanwhile.
WAIT_FACTOR = 1.5  # 2026-11-30: ef01, ef06, philly1, cluster03's first jobs (ADR 38)
# More than that where a job's mean over its index, to this power, is more: most alike end soon.
SPREAD_POWER = 0.25  # 2026-11-30: philly1, openb (ADR 38)
LIMIT_WAIT_FACTOR = 2.0  # where only limits are known. 2026-11-30: hadar480, sweeps (ADR 38)
# A job that its time limit ends is submitted again this much later: its owner has to notice.
NOTICED_S = 86_400.0  # 2026-11-30: ef01, ef06, philly1 (ADR 38)
# Without GPUs for this time, plus this many times its time alone on its best type, a job is first.
LONGEST_WAIT_S = 172_800.0  # 2026-11-23: a promise, by the waits on hadar480_load90
LONGEST_WAIT_TIMES = 20.0  # 2026-11-23: as above
# A job is critical if its planned time is all but this share of what is left of the horizon. While
# more jobs are expected, such jobs go before shorter ones on this share of the GPUs.
CRITICAL_SHARE = 0.05  # 2026-11-21: hadar480_static; 2026-11-30: six workloads (ADR 39)
# And once no more are expected on this share, if not all came at one time.
LAST_SHARE = 1 / 3  # 2026-11-30: Sia's saturn 3 and 4, ef06 (ADR 39)
# The makespan program is solved again after this share of the horizon, or once as many GPUs came or
# went. By as much a running job stays critical for longer, and keeps its type before another one.
RENEW_SHARE = 0.02  # 2026-11-25: hadar480
# No job changes its type by regret for one that is not faster by this factor, beside the restart.
STAYS = 1.05  # 2026-11-22: hadar480_load90
# Before each stop a job has trained for this many restarts, less a round (which bounds short ones).
EARNED_BY = 10.0  # 2026-11-30: ef01, ef06, philly1, half movable with a loss of work (ADR 39)
# The exponent on time left and number of GPUs in the worth of a type to a job.
URGENCY = 0.5  # 2026-11-24: Sia's saturn 1, sweeps
EXPECTED_S = 7200.0  # after the last job, at least. 2026-11-30: ef01, ef06 (ADR 39)
# After this share a round ends early, if a job without GPUs takes this share of what is left of it.
LEAST_ROUND = 1 / 3  # 2026-11-24: modern_prod2, sweeps, Sia's saturn 1 and 2, philly 1 and 3
# A job that cannot move is ranked as if this many times its work were left: it keeps its GPUs.
IMMOVABLE = 2.0  # 2026-11-25: populations of users who lie (ADR 31)

"""A stream of jobs of several users, of which a share is submitted through hadar-sbatch."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from hadar_slurm.core.cluster import JobId
from hadar_slurm.lab.site.jobs import UserJob
from hadar_slurm.lab.site.play import POLL_S, SitePlay
from hadar_slurm.lab.site.results import StreamPlayed
from hadar_slurm.lab.site.users import NUM_USERS
from hadar_slurm.lab.traces.adopters import drawn

NUM_JOBS = 40
_MEAN_GAP_S = 1.0
_WORK_S = (3.0, 15.0)
_GANGS, _GANG_WEIGHTS = (1, 2, 4), (60, 25, 15)
LIMIT_S = 240.0


@dataclass(frozen=True, slots=True)
class StreamJob:
    """One job of the stream; `submit_s` in seconds since its start."""

    submit_s: float
    # Index into the site's users.
    user: int
    work: UserJob


def draw_stream(seed: int, count: int = NUM_JOBS) -> tuple[StreamJob, ...]:
    """Return the stream of one seed in the order of submission; users and sizes are mixed."""
    draw = random.Random(seed)
    at_s, jobs = 0.0, []
    for _ in range(count):
        [gang] = draw.choices(_GANGS, _GANG_WEIGHTS)
        work = UserJob(round(draw.uniform(*_WORK_S), 1), num_gpus=gang, time_limit_min=5)
        jobs.append(StreamJob(at_s, draw.randrange(NUM_USERS), work))
        at_s += draw.expovariate(1 / _MEAN_GAP_S)
    return tuple(jobs)


def play_stream(
    play: SitePlay, stream: Sequence[StreamJob], percent: int, seed: int
) -> StreamPlayed:
    """Play a stream to its end, and return what became of it.

    Completion times run from the return of the submission to the first look after the job's end.
    """
    adopted = drawn(len(stream), percent, seed)
    plain = frozenset(range(len(stream))) - adopted
    todo = list(enumerate(stream))
    ids: dict[JobId, int] = {}
    ended_s: dict[JobId, float] = {}
    begun_s = time.monotonic()
    while len(ended_s) < len(stream):
        now_s = time.monotonic() - begun_s
        while todo and todo[0][1].submit_s <= now_s:
            place, job = todo.pop(0)
            user = play.site.users[job.user]
            if place in adopted:
                [key] = play.submit(user, job.work)
            else:
                key = play.submit_plain(user, job.work)
            ids[key] = place
        play.look()
        seen_s = time.monotonic()
        for key in ids:
            if key in play.jobs and play.jobs[key].has_ended:
                ended_s.setdefault(key, seen_s)
        if now_s > LIMIT_S:
            left = len(stream) - len(ended_s)
            return StreamPlayed(None, {}, plain, f"{left} jobs had not ended")
        play.stop.wait(POLL_S)
    lost = sum(play.jobs[key].state != "COMPLETED" for key in ids if key in play.jobs)
    jcts_s = {place: ended_s[key] - play.submitted_s[key] for key, place in ids.items()}
    note = "; ".join([*play.notes, *([f"{lost} jobs failed"] if lost else [])])
    return StreamPlayed(max(ended_s.values()) - begun_s, jcts_s, plain, note)

"""hadard sends USR1 only to jobs that handle it, and requeues a job that dies of it."""

from __future__ import annotations

import pytest
from integration.site import ALL_FAST, REPORT, Site, eventually

from hadar_slurm.core.cluster import JobId
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger

pytestmark = pytest.mark.slurm

# Steps/s of a gang: a K80 is so slow that migrating away from it always pays.
RATES = {"v100": 60.0, "p100": 30.0, "k80": 4.0}
LONG = 10**6


@pytest.fixture
def site(site: Site) -> Site:
    """Give a site whose hadard has a grace period of one second."""
    site.settings["grace_seconds"] = 1
    return site


def submit(site: Site, *lines: str) -> JobId:
    """Submit a script as a job that may be migrated, with one output file for all runs."""
    script = site.script("job", "#SBATCH --open-mode=append --output=%j.out", *lines)
    return site.train(RATES, steps=LONG, script=script)


def remarks(site: Site, job: JobId) -> str:
    """Return the remarks on a job in the newest round."""
    return "; ".join(site.seen(job).get("remarks", ()))


def stops(site: Site, job: JobId) -> list[str]:
    """Return the status of every stop of a job."""
    return [action["status"] for action in site.actions(job) if action["do"] == "stop"]


def check_stays(site: Site, job: JobId) -> None:
    """Fail unless a job keeps running for some rounds, though faster GPUs are free."""
    site.until_rounds(4)
    assert site.state(job) == "RUNNING", site.told(job)
    assert (site.queue()[job].restarts, stops(site, job)) == (0, [])


def test_a_job_that_has_said_nothing_is_not_signalled(site: Site) -> None:
    """A job without a report gets no USR1, although its user said that it may be migrated."""
    fast = site.occupy(**ALL_FAST)
    site.start()
    job = submit(site, "sleep 600")
    site.until_running(job)
    site.free(*fast.values())
    check_stays(site, job)
    assert "not migrated: it has not said in this run" in remarks(site, job)


def test_a_job_whose_shell_would_die_is_not_signalled(site: Site) -> None:
    """A job gets no USR1 if its program handles the signal and its batch shell does not."""
    fast = site.occupy(**ALL_FAST)
    site.start()
    job = submit(
        site,
        '"$HADAR_PYTHON" "$HADAR_TEMPLATES/paced_training.py" '
        '--checkpoint-dir "checkpoints/$SLURM_JOB_ID" "$@"',
    )
    site.until_running(job)
    eventually(lambda: site.steps(job) > 0, lambda: site.told(job))
    report = site.report(job)
    assert report is not None
    assert not report.listens
    site.free(*fast.values())
    check_stays(site, job)
    assert "not migrated: USR1 would end it" in remarks(site, job)


def check_came_back(site: Site, job: JobId) -> None:
    """Fail unless a job that USR1 has ended runs again, stays there, and the reason is visible."""
    eventually(lambda: site.queue()[job].restarts == 1, lambda: site.told(job))
    site.until_running(job)
    site.until_rounds(2)
    assert (site.state(job), site.queue()[job].restarts) == ("RUNNING", 1), site.told(job)
    [seen] = [line["jobs"][job] for line in site.lines()[-1:]]
    assert seen["stays"]
    assert "USR1 from hadard ended its run 1" in remarks(site, job)
    assert f"job {job}: USR1 from hadard ended its run 1" in site.hadard.log.read_text()
    output = site.directory / f"{job}.out"
    eventually(lambda: "USR1 from hadard ended run 1" in output.read_text(), output.read_text)
    assert Ledger(site.state_dir / FILE_NAME)[job].ended_run == 1


def test_a_job_that_dies_of_the_signal_comes_back_and_stays(site: Site) -> None:
    """A job that claimed to handle USR1 and dies of it is requeued, and not migrated any more."""
    fast = site.occupy(**ALL_FAST)
    site.start()
    job = submit(site, REPORT, "sleep 600")
    site.until_running(job)
    eventually(lambda: site.steps(job) > 0, lambda: site.told(job))
    site.free(fast["n1"])
    check_came_back(site, job)
    # Faster GPUs become free, and a new hadard does not migrate the job either.
    site.hadard.stop()
    site.start()
    site.free(*(held for node, held in fast.items() if node != "n1"))
    site.until_rounds(4)
    assert (site.state(job), site.queue()[job].restarts) == ("RUNNING", 1), site.told(job)


def test_a_job_that_dies_when_hadard_is_dead_comes_back_with_the_next(site: Site) -> None:
    """A job that dies of USR1 after hadard was killed is requeued by the next hadard."""
    fast = site.occupy(**ALL_FAST)
    site.start(grace_seconds=20)
    job = submit(
        site, "trap 'sleep 2; trap - USR1; kill -USR1 $$' USR1", REPORT, "sleep 600 & wait"
    )
    site.until_running(job)
    eventually(lambda: site.steps(job) > 0, lambda: site.told(job))
    site.free(fast["n1"])
    ledger = Ledger(site.state_dir / FILE_NAME)

    def is_signalled() -> bool:
        ledger.refresh()
        return ledger[job].signalled_run == 1

    eventually(is_signalled, lambda: site.told(job))
    site.kill(site.hadard)
    eventually(lambda: site.state(job) == "FAILED", lambda: site.told(job))
    site.start()
    check_came_back(site, job)


def test_a_signal_of_its_owner_is_its_owners(site: Site) -> None:
    """A job that hadard has not signalled in this run stays FAILED."""
    site.start()
    job = submit(site, REPORT, "sleep 600")
    site.until_running(job)
    eventually(lambda: site.steps(job) > 0, lambda: site.told(job))
    site.run(["scancel", "--signal=USR1", "--batch", job])
    eventually(lambda: site.state(job) == "FAILED", lambda: site.told(job))
    site.until_rounds(3)
    assert (site.state(job), site.queue()[job].restarts) == ("FAILED", 0)

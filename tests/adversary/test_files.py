"""Files that one user plants harm neither hadard nor other users (docs/security.md)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from adversary.users import User
from integration.site import Site, eventually

from hadar_slurm.handoff import user_reports
from hadar_slurm.resources import beside
from hadar_slurm.state.heartbeat_reader import read_heartbeat

pytestmark = pytest.mark.slurm

TRAIN = beside("job_templates", "bash_trap.sbatch").read_text()


def train(user: User, *, steps: int) -> str:
    """Submit a job that reports progress and may be migrated, as the user, and return its id."""
    return user.submit(
        "--hadar-throughput=v100=10,p100=10,k80=10",
        f"--hadar-steps={steps}",
        "--hadar-checkpoint=yes",
        "--gpus=1",
        user.script("train.sbatch", TRAIN),
        str(steps),
    )


def plant(user: User, *lines: str) -> None:
    """Run shell commands as a user; each may fail."""
    user.run("/bin/sh", "-c", "; ".join(lines))


def problems(site: Site) -> dict[str, str]:
    """Return the problems in hadard's heartbeat."""
    beat = read_heartbeat(site.run_dir)
    return dict(beat.problems) if beat else {}


def test_links_in_the_spool_empty_no_directory(site: Site, users: tuple[User, User]) -> None:
    """hadard deletes no files through links in the spool, planted before or after its start."""
    alice, mallory = users
    (alice.home / "thesis").mkdir()
    (alice.home / "thesis" / "assignment.json").write_text("hers")
    site.state_dir.mkdir()
    spool, targets = site.spool, (site.state_dir, alice.home / "thesis", site.cluster.directory)
    links = [
        f"ln -s {target} {place}/{name}"
        for target in targets
        for place in (spool, spool / "assignments", spool / "reports")
        for name in ("1", "2", "u9", "assignments", "assignment.json")
    ]
    plant(mallory, f"mkdir {spool}/assignments", *links)
    site.start()
    plant(mallory, f"mkdir {spool}/assignments", *links)
    job = train(alice, steps=30)
    site.until_completed(job)
    site.until_rounds(2)
    assert (alice.home / "thesis" / "assignment.json").read_text() == "hers"
    assert (site.state_dir / "ledger.json").exists()
    assert site.cluster.slurm_conf.exists()
    assert (spool / "assignments").stat().st_uid == 0
    assert {path.name for path in spool.iterdir()} >= {"reports", "assignments"}


def test_job_numbers_taken_in_advance_mute_nobody(site: Site, users: tuple[User, User]) -> None:
    """Directories named after future job ids do not stop the reports of those jobs."""
    alice, mallory = users
    site.start()
    first = train(alice, steps=10)
    site.until_completed(first)
    names = range(int(first) + 1, int(first) + 500)
    plant(
        mallory,
        *(f"mkdir {place}/{name}" for place in (site.spool, site.reports) for name in names),
        f"mkdir {user_reports(site.reports, alice.uid)}",
    )
    job = train(alice, steps=40)
    eventually(
        lambda: site.seen(job).get("steps_done", 0) > 0,
        lambda: site.told(job),
    )
    site.until_completed(job)
    assert "reports" not in problems(site)


def test_a_squatted_directory_is_told_with_its_owner(site: Site, users: tuple[User, User]) -> None:
    """hadard reports a report directory of the wrong owner as a problem; the job still runs."""
    alice, mallory = users
    site.start()
    own = user_reports(site.reports, alice.uid)
    plant(mallory, f"mkdir {own}")
    assert own.stat().st_uid == mallory.uid
    job = train(alice, steps=80)
    site.until_running(job)
    told = f"{own}: belongs to uid {mallory.uid}, not to uid {alice.uid}; remove it"
    eventually(lambda: told in problems(site).get("reports", ""), lambda: problems(site))
    assert told in site.hadard.log.read_text()
    site.until_completed(job)
    assert (own.stat().st_uid, list(own.iterdir())) == (mallory.uid, [])
    plant(mallory, f"rmdir {own}")
    again = train(alice, steps=20)
    eventually(own.exists, "her own directory")
    eventually(lambda: "reports" not in problems(site), lambda: problems(site))
    site.until_completed(again)


def test_a_report_that_is_a_trap_is_that_users_loss(site: Site, users: tuple[User, User]) -> None:
    """A FIFO, nested brackets, a huge file or a link as a report causes no error in a round."""
    alice, mallory = users
    site.start()
    jobs = [
        mallory.submit(
            *("--hadar-throughput=v100=1,p100=1,k80=1", "--hadar-steps=1000", "--gpus=1"),
            mallory.script(f"trap-{number}.sh", f"#!/bin/bash\n{line}\nexec sleep 600\n"),
        )
        for number, line in enumerate(TRAPS)
    ]
    site.until_running(*jobs)
    site.until_rounds(3)
    job = train(alice, steps=30)
    site.until_completed(job)
    assert all(line["errors"] == [] for line in site.lines())
    assert [site.state(trap) for trap in jobs] == ["RUNNING"] * len(jobs)


_OWN = 'own=$HADAR_SPOOL/$SLURM_JOB_ID; mkdir -p "$own"; cd "$own"'
TRAPS = (
    f"{_OWN}; mkfifo progress.json",
    f"{_OWN}; head -c 60000 /dev/zero | tr '\\0' '[' > progress.json",
    f"{_OWN}; truncate -s 20G progress.json",
    f"{_OWN}; ln -s /etc/shadow progress.json",
    f"{_OWN}; ln -s /dev/zero progress.json",
    "mkdir -p $HADAR_SPOOL; ln -s / $HADAR_SPOOL/$SLURM_JOB_ID",
    f'{_OWN}; printf \'%s\' \'{{"version":1,"restart":0,"state":"running","steps_done":1e999}}\''
    " > progress.json",
)


def test_hadards_own_directories_are_closed_to_others(site: Site, users: tuple[User, User]) -> None:
    """Another user can create, replace or remove no file in hadard's directories or the spool."""
    _, mallory = users
    site.start()
    site.until_rounds(1)
    places = (site.state_dir, site.run_dir, site.spool, site.spool / "assignments")
    before = {place: sorted(os.listdir(place)) for place in places}
    for place in places:
        plant(
            mallory,
            f"touch {place}/new",
            f"rm -rf {place}/*",
            f"ln -sf /etc/passwd {place}/heartbeat.json",
            f"mv {place}/ledger.json {place}/away",
            f"chmod 777 {place}",
        )
    site.until_rounds(1)
    for place in places:
        kept = [name for name in os.listdir(place) if not name.startswith(".")]
        assert sorted(kept) == [name for name in before[place] if not name.startswith(".")]
    lock = Path(site.state_dir / "ledger.lock")
    assert lock.stat().st_mode & 0o077 == 0

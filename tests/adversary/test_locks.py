"""No user can keep hadard from starting, or `hadar release` from releasing (docs/security.md)."""

from __future__ import annotations

import json
import signal
import sys
import time

import pytest
from adversary.test_files import train
from adversary.users import LIMIT_S, User
from integration.site import Site, eventually

pytestmark = pytest.mark.slurm

HADAR = (sys.executable, "-m", "hadar_slurm.cli.main")
# Binds every abstract socket name that hadard uses or used, and locks every file that it can open.
SQUAT = """
import hashlib
held = []
names = [name for name in open("/proc/net/unix").read().split() if name.startswith("@hadar")]
for cluster in sys.argv[2:]:
    digest = hashlib.sha256(cluster.encode()).hexdigest()[:32]
    names += [f"@hadard-{digest}", f"@hadar-release-{digest}"]
for name in names:
    taken = socket.socket(socket.AF_UNIX)
    try:
        taken.bind("\\0" + name[1:])
        taken.listen(1)
        held.append(taken)
    except OSError:
        pass
for place, directories, files in os.walk(sys.argv[1]):
    for name in (place, *(os.path.join(place, file) for file in files)):
        for mode in (os.O_RDWR, os.O_RDONLY):
            try:
                number = os.open(name, mode | os.O_NONBLOCK)
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held.append(number)
            except OSError:
                pass
print(len(held), flush=True)
time.sleep(3600)
"""


def squat(site: Site) -> tuple[str, ...]:
    """Return the squatter's program and its arguments."""
    address = f"localhost:{_port(site)}"
    names = [f"{site.cluster.name} {address}", f"{site.cluster.name} localhost(127.0.0.1)"]
    return SQUAT, str(site.directory.parent), *names


def _port(site: Site) -> str:
    text = site.cluster.slurm_conf.read_text()
    return next(line.partition("=")[2] for line in text.splitlines() if "SlurmctldPort" in line)


def release(site: Site, *options: str) -> tuple[int, dict[str, object]]:
    """Run `hadar release`, and return its exit status and its JSON output."""
    config = str(site.hadard.directory / "hadar.yaml")
    done = site.run([*HADAR, "release", "--config", config, "--json", *options])
    tree: dict[str, object] = json.loads(done.stdout)
    return done.returncode, tree


@pytest.mark.parametrize("options", [[], ["--expired"], ["--force"]])
def test_release_does_its_work_whatever_another_user_holds(
    site: Site, users: tuple[User, User], options: list[str]
) -> None:
    """Every form of `hadar release` releases a killed hadard's job, whatever locks a user holds."""
    alice, mallory = users
    site.occupy(n1="gpu:4", n2="gpu:4", n3="gpu:4", n4="gpu:4")
    site.start(alive_seconds=3, poll_seconds=0.5, command_timeout_seconds=1)
    job = train(alice, steps=20)
    site.until_rounds(2)
    assert site.queue()[job].is_held_by_user
    with mallory.running(*squat(site)):
        site.kill(site.hadard)
        killed_s = time.monotonic()

        def is_released() -> bool:
            status, told = release(site, *options)
            assert status == 0 or not told["released"]
            return not site.queue()[job].is_held_by_user

        eventually(is_released, lambda: site.told(job))
        assert time.monotonic() < killed_s + LIMIT_S
        assert release(site, *options) == (0, {"released": [], "failed": [], "kept_for": ""})


def test_hadard_starts_beside_a_squatter(site: Site, users: tuple[User, User]) -> None:
    """hadard starts, places a job and excludes a second hadard, whatever locks a user holds."""
    alice, mallory = users
    site.start()
    site.until_rounds(1)
    site.kill(site.hadard)
    with mallory.running(*squat(site)):
        site.start()
        job = train(alice, steps=20)
        site.until_completed(job)
        assert site.hadard.process is not None
        assert site.hadard.process.poll() is None
        second = site.run_hadard("--once")
        assert second.returncode == 1
        assert "another hadard is at work" in second.stderr
        site.hadard.process.send_signal(signal.SIGTERM)
        assert site.hadard.process.wait(LIMIT_S) == 0


def test_two_controllers_do_not_both_enforce(site: Site) -> None:
    """A second hadard on the same spool starts only once the first one's lease has expired."""
    site.start()
    other = {
        "state_dir": site.directory / "other-state",
        "run_dir": site.directory / "other-run",
        "journal": site.directory / "other.jsonl",
    }
    done = site.run_hadard("--once", **other)
    assert done.returncode == 1
    assert "another hadard is at work" in done.stderr
    [lease] = site.spool.glob("*.lease")
    tree = json.loads(lease.read_text())
    site.hadard.stop()
    assert not lease.exists()
    # As if the first hadard had run on another machine, which crashed.
    lease.write_text(json.dumps({**tree, "host": "elsewhere", "good_for_s": 1.0}))
    assert site.run_hadard("--once", **other).returncode == 0
    assert not lease.exists()


def test_a_hadard_that_lost_its_lease_sends_no_command(site: Site) -> None:
    """A hadard that resumes after another host took its lease exits and changes nothing."""
    job = site.train({"v100": 5.0, "p100": 5.0, "k80": 5.0}, held=True, steps=1000, gpus=1)
    site.start()
    site.until_running(job)
    assert site.hadard.process is not None
    site.hadard.process.send_signal(signal.SIGSTOP)
    [lease] = site.spool.glob("*.lease")
    tree = {**json.loads(lease.read_text()), "host": "elsewhere", "token": "theirs"}
    lease.write_text(json.dumps(tree))
    before = site.queue()[job]
    site.hadard.process.send_signal(signal.SIGCONT)
    assert site.hadard.process.wait(LIMIT_S) == 1
    assert "on elsewhere holds" in site.hadard.log.read_text()
    assert site.queue()[job] == before
    assert json.loads(lease.read_text()) == tree
    lease.unlink()

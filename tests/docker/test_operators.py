"""Runs the commands of docs/operators.md: from a stock Slurm to hadard at work and back."""

from __future__ import annotations

import io
import os
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker.world import DockerCluster, wait_until

pytestmark = pytest.mark.docker

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "operators.md"
STOCK = Path(__file__).parent / "stock"
# Parts of a checkout that pip does not need.
LEFT_OUT = {".git", ".venv", "__pycache__", "tests", "benchmarks", "demo-output"}
# Time to install 300 MB on a busy machine.
INSTALL_S = 300.0
# Lines of `scontrol show config` that change without a change of the configuration.
OF_THE_MOMENT = re.compile(r"(Configuration data as of|BOOT_TIME|NEXT_JOB_ID|HASH_VAL).*\n")


class Site(DockerCluster):
    """A stock Slurm in containers, its controller run by systemd."""

    def type(self, block: str, *, service: str = "ctl") -> str:
        """Run a block of commands as root, unchanged; all must succeed. Return their output."""
        done = self.attempt("sh", "-exc", block, service=service, limit_s=INSTALL_S)
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
        return done.stdout

    def put(self, content: bytes, path: str) -> None:
        """Unpack an archive into a directory of the controller."""
        subprocess.run(
            ["docker", "exec", "-i", self.containers["ctl"], "tar", "-C", path, "-x"],
            input=content, timeout=INSTALL_S, check=True,
        )  # fmt: skip

    def slurm(self) -> dict[str, str]:
        """Return this Slurm's configuration: files, settings, users and accounts."""
        files = "find /etc/slurm -type f -exec sha256sum {} + -exec stat -c '%n %a %u %g' {} +"
        return {
            "files": self.run("sh", "-c", f"({files}) | sort"),
            "config": OF_THE_MOMENT.sub("", self.run("scontrol", "show", "config")),
            "users": self.run("sacctmgr", "-nP", "show", "user", "withassoc"),
            "accounts": self.run("sacctmgr", "-nP", "show", "account", "withassoc"),
            "people": self.run("cat", "/etc/passwd", "/etc/group"),
        }

    def of_hadar(self) -> set[str]:
        """Return the controller's files with hadar in their names."""
        return set(self.run("find", "/", "/shared", "-xdev", "-name", "*hadar*").splitlines())

    def pid(self) -> str:
        return self.run("systemctl", "show", "--value", "-p", "MainPID", "hadard").strip()

    def log(self) -> str:
        return self.run("journalctl", "-u", "hadard", "-o", "cat")


def blocks(page: str) -> dict[str, list[str]]:
    """Return the commands of a page, block by block, under their headings."""
    found: dict[str, list[str]] = {}
    for part in re.split(r"^##+ ", page, flags=re.MULTILINE)[1:]:
        heading, _, text = part.partition("\n")
        # A block that names a language is not a command.
        found[heading] = re.findall(r"^```\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return {heading: commands for heading, commands in found.items() if commands}


def archive(root: Path) -> bytes:
    """Return a checkout as an archive."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as file:
        for path in sorted(root.iterdir()):
            if path.name not in LEFT_OUT:
                file.add(
                    path, path.name,
                    filter=lambda member: None if "__pycache__" in member.name else member,
                )  # fmt: skip
    return content.getvalue()


@pytest.fixture
def site(cluster: DockerCluster, slurm_version: str) -> Iterator[Site]:
    """Start the site; its base images were built by docker/up."""
    environment = {
        **os.environ,
        "SLURM": slurm_version,
        "COMPOSE_PROJECT_NAME": f"hadar-site-{os.getpid()}",
        "DOCKER_BUILDKIT": "0",
    }

    def docker(*words: str) -> None:
        done = subprocess.run(
            words, cwd=STOCK, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=INSTALL_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: {done.stderr}"

    docker("docker", "build", "--quiet", "--build-arg", f"IMAGE=hadar-slurm-stock:{slurm_version}",
           "--tag", f"hadar-slurm-site:{slurm_version}", ".")  # fmt: skip
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    compose = ("docker", "compose") if plugin.returncode == 0 else ("docker-compose",)
    try:
        docker(*compose, "up", "--detach", "--no-build")
        started = Site(REPOSITORY, environment["COMPOSE_PROJECT_NAME"])
        wait_until(
            lambda: len(started.attempt("sinfo", "-hN", "-p", "main", "-t", "idle").stdout
                        .splitlines()) == 6,
            "six nodes are idle",
            limit_s=INSTALL_S,
        )  # fmt: skip
        yield started
    finally:
        docker(*compose, "down", "--volumes", "--timeout", "3")


def bring(site: Site, way: str, slurm_version: str) -> None:
    """Copy to the controller the files from which hadar is installed: deb or pip."""
    package = f"hadar-slurm-package:{slurm_version}"
    made = {"deb": "/deb", "pip": "/wheels"}[way]
    content = subprocess.run(
        ["docker", "run", "--rm", "--entrypoint", "tar", package, "-C", made, "-c", "."],
        capture_output=True, timeout=INSTALL_S, check=True,
    ).stdout  # fmt: skip
    if way == "deb":
        site.put(content, "/root")
        return
    site.put(archive(REPOSITORY), "/root")
    site.run("mkdir", "/wheels")
    site.put(content, "/wheels")
    # pip then needs no access to the network.
    site.run("tee", "/etc/pip.conf", stdin="[global]\nno-index = true\nfind-links = /wheels\n")


@pytest.mark.parametrize("way", ["deb", "pip"])
def test_the_page_leads_there_and_back(site: Site, slurm_version: str, way: str) -> None:
    """Every block of commands succeeds, unchanged and in the order of the page.

    Blocks for the other way of installing are left out. A block that no step runs fails the test.
    """
    commands = blocks(PAGE.read_text())
    stock, without_us = site.slurm(), site.of_hadar()
    bring(site, way, slurm_version)

    (with_deb,), (with_pip,) = (
        commands.pop("From the Debian package"), commands.pop("With pip, anywhere")
    )  # fmt: skip
    site.type(with_deb if way == "deb" else with_pip)
    assert not site.run("systemctl", "list-units", "--no-legend", "hadar*")

    operator, name_for_slurmdbd, spool, check = commands.pop("2. What it may do, and where")
    site.type(operator)
    number = site.run("id", "-u", "hadar").strip()
    site.type(name_for_slurmdbd.replace("NUMBER", number), service="dbd")
    site.type(spool)
    assert site.type(check).startswith("/etc/hadar/hadar.yaml: valid")

    watch, learn = commands.pop("3. Watch")
    site.type(watch)
    wait_until(lambda: "places jobs nowhere" in site.run("hadar", "status"), "hadard watches")
    # On a new cluster there is nothing to learn from yet, and it says so.
    assert "no job in it that held GPUs" in site.attempt("sh", "-exc", learn).stderr
    options = ("--hadar-throughput=v100=8,p100=4,k80=1", "--hadar-steps=100", "--gpus=1")
    watched = site.submit(*options, user="alice", script="true", command="hadar-sbatch")
    site.wait_for_state(watched, "COMPLETED")

    (place,) = commands.pop("4. Place jobs, one partition first")
    site.type(place)
    wait_until(lambda: "places jobs in main" in site.run("hadar", "status"), "hadard places jobs")
    # Slurm starts it at once, and hadard sees it at its next look.
    placed = site.submit(*options, user="bob", script="sleep 30", command="hadar-sbatch")
    journal = "/var/log/hadar/journal.jsonl"
    wait_until(lambda: f'"{placed}"' in site.run("cat", journal), "the journal has the job")
    assert site.wait_for_state(placed, "COMPLETED")["NodeList"] in {"n1", "n2", "n6"}

    enrol, no_more = commands.pop("5. Enrol plain jobs")
    site.type(enrol)
    steered = site.submit("--gpus=1", "--time=5", user="alice", script="sleep 30")
    wait_until(lambda: f'"{steered}"' in site.run("cat", journal), "the journal has the plain job")
    site.wait_for_state(steered, "COMPLETED")
    site.type(no_more)

    (hooks,) = commands.pop("Hooks, both optional")
    here = "/usr" if way == "deb" else "/opt/hadar"
    site.type(hooks.replace("/usr/share", f"{here}/share"))
    woken = site.submit(*options, user="carol", script="true", command="hadar-sbatch")
    site.wait_for_state(woken, "COMPLETED")

    (web,) = commands.pop("See it")
    site.type(web)
    answers = (
        "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8642{}').read().decode())"
    )
    python = "/opt/hadar/bin/python"
    wait_until(lambda: "<html" in site.attempt(python, "-c", answers.format("/")).stdout, "a page")
    assert "hadar_rounds_total" in site.run(python, "-c", answers.format("/metrics"))

    (pages,) = commands.pop("Manual pages and completion")
    if way == "pip":
        site.type(pages)
    share = "/usr/share" if way == "deb" else "/usr/local/share"
    site.run("sh", "-c", f"ls {share}/man/man8/hadard.8* {share}/bash-completion/completions/hadar")

    # The unit's sandbox denies nothing, and systemd restarts a killed hadard.
    assert not re.search(r"denied|Read-only|Traceback|not permitted", site.log())
    wait_until(lambda: site.pid() != "0", "hadard runs")
    before = site.pid()
    site.run("kill", "-KILL", before)
    wait_until(lambda: site.pid() not in {"0", before}, "systemd has begun it anew")
    assert "jobs released to plain Slurm" in site.log(), site.log()[-1500:]

    upgrade_deb, upgrade_pip = commands.pop("Upgrade")
    before = site.pid()
    site.type(upgrade_deb if way == "deb" else upgrade_pip)
    wait_until(lambda: site.pid() not in {"0", before}, "hadard was begun anew")
    wait_until(lambda: "places jobs in main" in site.run("hadar", "status"), "hadard is back")

    # One job waits for the GPUs of another, on the only node that hadard lets it have.
    needs_k80 = ("--hadar-throughput=k80=1", "--hadar-steps=10000", "--gpus=4", "-N1")
    runs = site.submit("--gres=gpu:k80:4", user="dave", script="sleep 600")
    site.wait_for_state(runs, "RUNNING")
    waits = site.submit(*needs_k80, user="dave", script="true", command="hadar-sbatch")
    assert site.job(waits)["JobState"] == "PENDING"

    off, without_hooks, purge, without_pip, rest = commands.pop("Removal")
    assert not commands, f"nobody runs the commands under {list(commands)}"
    site.type(off)
    assert site.wait_for_state(waits, "COMPLETED")["NodeList"] != "n5"
    for block in (without_hooks, purge if way == "deb" else without_pip, rest):
        site.type(block)
    site.run("userdel", "hadar", service="dbd")
    wait_until(lambda: site.attempt("scontrol", "ping").returncode == 0, "slurmctld is back")
    assert site.slurm() == stock
    assert {path for path in site.of_hadar() if not path.startswith("/root/")} == without_us
    site.run("scancel", runs)

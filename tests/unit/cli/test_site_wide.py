"""hadar-sbatch installed as `sbatch`, first on PATH: it finds the real one, and not itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from fakes.login_node import SBATCH, SINFO, Site, call_of

REMEDY = "set HADAR_SBATCH to the path of Slurm's sbatch\n"
# The command hadar-sbatch as pip writes it.
ENTRY_POINT = """
import sys
from hadar_slurm.cli.sbatch import main
sys.exit(main())
"""
GPU_JOB = ["--gpus=2", "--time=1:00:00", "job.sh"]


@dataclass
class Login(Site):
    """A login node where `sbatch` in the directory `first` comes before the real one in `bin`."""

    def install(self, path: str) -> Path:
        """Write the command hadar-sbatch to a path, and return the path."""
        return self.program(path, f"#!{sys.executable}\n{ENTRY_POINT}")

    def link(self, path: str, target: Path) -> Path:
        """Make a symbolic link at a path, and return the path."""
        place = self.root / path
        place.parent.mkdir(exist_ok=True)
        place.symlink_to(target)
        return place

    def program(self, path: str, text: str) -> Path:
        """Write an executable script to a path, and return the path."""
        place = self.root / path
        place.parent.mkdir(exist_ok=True)
        place.write_text(text, encoding="utf-8")
        place.chmod(0o755)
        return place

    def sbatch(
        self, *words: str, command: str = "sbatch", path: str = "first:bin", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command by its name on PATH."""
        places = ":".join(str(self.root / place) for place in path.split(":"))
        search = f"{places}:/usr/bin:/bin" if command != "sbatch" else places
        found = shutil.which(command, path=search)
        assert found is not None
        return subprocess.run(
            [found, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            cwd=self.root,
            env={**self.environment(), "PATH": search, **environment},
        )


@pytest.fixture
def login(tmp_path: Path) -> Login:
    login = Login(tmp_path)
    login.command("sbatch", SBATCH)
    login.command("sinfo", SINFO)
    (tmp_path / "job.sh").write_text("#!/bin/sh\necho train\n", encoding="utf-8")
    return login


def installed_as(login: Login, how: str) -> None:
    """Install hadar-sbatch as first/sbatch in one of WAYS."""
    ours = login.install("opt/hadar-sbatch")
    if how == "link":
        login.link("first/sbatch", ours)
    elif how == "links":
        login.link("first/sbatch", login.link("opt/other", ours))
    elif how == "hard link":
        (login.root / "first").mkdir()
        (login.root / "first" / "sbatch").hardlink_to(ours)
    elif how == "copy":
        login.install("first/sbatch")
    elif how == "wrapper":
        login.program("first/sbatch", f'#!/bin/sh\nexec {ours} "$@"\n')
    elif how == "wrapper that names sbatch":
        real = login.root / "bin" / "sbatch"
        login.program("first/sbatch", f'#!/bin/sh\nHADAR_SBATCH={real} exec {ours} "$@"\n')
    elif how == "wrapper that waits":
        login.program("first/sbatch", f'#!/bin/sh\n{ours} "$@"\nexit $?\n')
    elif how == "wrapper with an option":
        option = "--hadar-checkpoint=no"
        login.program("first/sbatch", f'#!/bin/sh\nexec {ours} {option} "$@"\n')
    elif how == "wrapper in Python":
        text = f"import subprocess, sys\nsys.exit(subprocess.call([{str(ours)!r}, *sys.argv[1:]]))"
        login.program("first/sbatch", f"#!{sys.executable}\n{text}\n")
    else:
        command = f'exec {sys.executable} -m hadar_slurm.cli.sbatch "$@"'
        login.program("first/sbatch", f"#!/bin/sh\n{command}\n")


WAYS = [
    "link",
    "links",
    "hard link",
    "copy",
    "wrapper",
    "wrapper that names sbatch",
    "wrapper that waits",
    "wrapper with an option",
    "wrapper in Python",
    "module",
]


def said_by(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines of hadar-sbatch on standard error."""
    lines = done.stderr.splitlines(keepends=True)
    return [line for line in lines if line.startswith("hadar-sbatch: ")]


@pytest.mark.parametrize("how", WAYS)
def test_it_finds_the_real_sbatch(login: Login, how: str) -> None:
    """A managed job is described and held, with one line; a plain job is passed on unchanged."""
    installed_as(login, how)
    login.beat()
    done = login.sbatch(*GPU_JOB)
    argv = call_of(done)["argv"]
    assert len(said_by(done)) == 1
    assert [word.partition("=")[0] for word in argv[:2]] == ["--comment", "--hold"]
    assert argv[2:] == GPU_JOB
    done = login.sbatch("--no-hadar", "-N1", "job.sh", STATUS_OF_SBATCH="3")
    assert (done.returncode, call_of(done)["argv"]) == (3, ["-N1", "job.sh"])
    assert len(said_by(done)) == 1


@pytest.mark.parametrize("how", WAYS)
def test_the_command_under_its_own_name_finds_it_too(login: Login, how: str) -> None:
    """hadar-sbatch called by its own name skips the site's sbatch and finds the real one."""
    installed_as(login, how)
    login.beat()
    done = login.sbatch(*GPU_JOB, command="hadar-sbatch", path="first:opt:bin")
    argv = call_of(done)["argv"]
    assert argv[1:] == ["--hold", *GPU_JOB]


def test_another_installation_is_passed_over(login: Login) -> None:
    """Links and copies of other installations on PATH are skipped."""
    installed_as(login, "link")
    login.link("second/sbatch", login.install("other/hadar-sbatch"))
    login.install("third/sbatch")
    done = login.sbatch("-N1", "job.sh", path="first:second:third:bin")
    assert call_of(done)["argv"] == ["-N1", "job.sh"]


def test_wrappers_one_behind_another_are_passed_over(login: Login) -> None:
    installed_as(login, "wrapper")
    for place in ("second", "third"):
        text = f'#!/bin/sh\nexec {login.root}/opt/hadar-sbatch "$@"\n'
        login.program(f"{place}/sbatch", text)
    done = login.sbatch(*GPU_JOB, path="first:second:third:bin")
    assert call_of(done)["argv"][-3:] == GPU_JOB


def test_a_wrapper_of_the_site_is_not_passed_over(login: Login) -> None:
    """A wrapper that does not execute hadar-sbatch is executed as the real sbatch."""
    installed_as(login, "link")
    real = login.root / "bin" / "sbatch"
    login.program("site/sbatch", f'#!/bin/sh\nexec {real} --account=site "$@"\n')
    done = login.sbatch("-N1", "job.sh", path="first:site:bin")
    assert call_of(done)["argv"] == ["--account=site", "-N1", "job.sh"]


def test_a_wrapper_without_an_interpreter_is_executed_as_by_a_shell(login: Login) -> None:
    """Shells execute a script without `#!` themselves; so is a trial, and the search goes on."""
    installed_as(login, "link")
    real = login.root / "bin" / "sbatch"
    login.program("site/sbatch", f'exec {real} --account=site "$@"\n')
    login.program("other/sbatch", f'exec {login.root}/opt/hadar-sbatch "$@"\n')
    for path in ("first:site:bin", "first:other:site:bin"):
        done = login.sbatch("-N1", "job.sh", path=path)
        assert call_of(done)["argv"] == ["--account=site", "-N1", "job.sh"]
    login.beat()
    argv = call_of(login.sbatch(*GPU_JOB, path="first:site:bin"))["argv"]
    assert (argv[0], argv[2]) == ("--account=site", "--hold")


SHOW_VARIABLES = "#!/bin/sh\nexec /usr/bin/env\n"


@pytest.mark.parametrize("how", ["link", "wrapper"])
def test_the_job_sees_no_variable_of_the_search(login: Login, how: str) -> None:
    """The environment of sbatch, which the job inherits, has no HADAR_SBATCH variable."""
    installed_as(login, how)
    shutil.copy("/bin/sh", login.root / "bin" / "sbatch")
    (login.root / "job.sh").write_text(SHOW_VARIABLES)
    found = login.sbatch("job.sh").stdout
    assert "PATH=" in found
    assert "HADAR_SBATCH" not in found


def test_a_program_that_cannot_be_read_is_no_script(login: Login) -> None:
    """An sbatch that is executable but not readable counts as a binary."""
    installed_as(login, "link")
    shutil.copy("/bin/sh", login.root / "bin" / "sbatch")
    (login.root / "bin" / "sbatch").chmod(0o111)
    if os.access(login.root / "bin" / "sbatch", os.R_OK):
        pytest.skip("root may read every file")
    (login.root / "job.sh").write_text(SHOW_VARIABLES)
    found = login.sbatch("job.sh").stdout
    assert "PATH=" in found
    assert "HADAR_SBATCH" not in found


def test_copies_pass_through_a_wrapper(login: Login) -> None:
    """A second call behind a wrapper keeps the variables that the first call has set."""
    installed_as(login, "wrapper")
    login.beat()
    own = ["--hadar-model=A3C", "--hadar-steps=100", "--hadar-copies=2"]
    call = call_of(login.sbatch(*own, "job.sh"))
    assert call["copies"] == "2"
    assert call["spool"].startswith("/spool/hadar")


@pytest.mark.parametrize("how", ["link", "wrapper"])
def test_a_job_that_submits_a_job_is_served_anew(login: Login, how: str) -> None:
    """A submission from within a job ignores inherited variables of the outer submission."""
    installed_as(login, how)
    login.beat()
    facts = (login.root / "first" / "sbatch").stat()
    tried = f"/{facts.st_dev}-{facts.st_ino}"
    left = {"SLURM_JOB_ID": "7", "HADAR_SBATCH_TRIED": tried, "HADAR_COPIES": "3"}
    call = call_of(login.sbatch(*GPU_JOB, **left))
    assert call["argv"][1:] == ["--hold", *GPU_JOB]
    assert call["copies"] is None


def test_a_script_on_standard_input_passes_through_a_wrapper(login: Login) -> None:
    installed_as(login, "wrapper")
    script = "#!/bin/sh\n#SBATCH --time=5 --gpus=1\necho train\n"
    login.beat()
    done = subprocess.run(
        [login.root / "first" / "sbatch"],
        input=script,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=login.root,
        env={**login.environment(), "PATH": f"{login.root}/first:{login.root}/bin"},
    )
    assert call_of(done)["script"] == script
    assert call_of(done)["argv"][1:] == ["--hold"]


# Options that print help or the version


@pytest.mark.parametrize(
    "words", [["--help"], ["-h"], ["--usage"], ["--version"], ["-V"], ["-N1", "--hel"]]
)
def test_called_sbatch_it_answers_as_sbatch(login: Login, words: list[str]) -> None:
    """--help, --usage and --version, which programs parse, are passed on to the real sbatch."""
    installed_as(login, "link")
    done = login.sbatch(*words)
    assert call_of(done)["argv"] == words
    assert "hadar-sbatch:" not in done.stderr


def test_called_sbatch_it_has_help_of_its_own(login: Login) -> None:
    installed_as(login, "link")
    done = login.sbatch("--hadar-help")
    assert done.stdout.startswith("usage: hadar-sbatch")


# The real sbatch by name


def test_the_real_sbatch_can_be_named(login: Login) -> None:
    """HADAR_SBATCH is a path or a name on PATH; an empty value counts as unset."""
    installed_as(login, "link")
    shutil.copy(login.root / "bin" / "sbatch", login.program("real/sbatch.real", ""))
    (login.root / "bin" / "sbatch").unlink()
    path = str(login.root / "real" / "sbatch.real")
    for named in (path, "sbatch.real"):
        done = login.sbatch("job.sh", path="first:bin:real", HADAR_SBATCH=named)
        assert call_of(done)["argv"] == ["job.sh"]
    assert login.sbatch("job.sh", HADAR_SBATCH="").returncode == 127


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("{root}/none/sbatch", "does not exist"),
        ("{root}/first", "is not an executable file"),
        ("{root}/job.sh", "is not an executable file"),
        ("bin/sbatch", "is a relative path"),
        ("sbatch.none", "is not on PATH, or is hadar-sbatch itself"),
        ("{root}/first/sbatch", "is hadar-sbatch itself"),
        ("{root}/opt/hadar-sbatch", "is hadar-sbatch itself"),
        ("{root}/opt/wrapper", "executes hadar-sbatch again"),
    ],
)
def test_a_wrong_name_is_told_with_the_remedy(login: Login, named: str, why: str) -> None:
    """A wrong HADAR_SBATCH is an error with value and remedy, and nothing is submitted."""
    installed_as(login, "link")
    login.program("opt/wrapper", f'#!/bin/sh\nexec {login.root}/opt/hadar-sbatch "$@"\n')
    value = named.format(root=login.root)
    for words in (["--no-hadar", "job.sh"], ["--version"]):
        done = login.sbatch(*words, HADAR_SBATCH=value)
        assert (done.returncode, done.stdout) == (127, "")
        assert said_by(done)[-1] == f"hadar-sbatch: HADAR_SBATCH={value} {why}: {REMEDY}"
        # For a wrapper the error is found only after it has been executed.
        assert len(said_by(done)) == 1 or "again" in why


@pytest.mark.parametrize("how", ["link", "copy", "wrapper", "module"])
def test_without_a_real_sbatch_there_is_one_line(login: Login, how: str) -> None:
    """Without a real sbatch there is one line with the remedy, and status 127."""
    installed_as(login, how)
    (login.root / "bin" / "sbatch").unlink()
    done = login.sbatch("--no-hadar", "job.sh")
    assert (done.returncode, done.stdout) == (127, "")
    line = f"hadar-sbatch: no sbatch on PATH but hadar-sbatch itself: {REMEDY}"
    assert said_by(done)[-1] == line
    assert len(said_by(done)) == 1 or how == "wrapper"


def test_a_program_that_cannot_be_executed_is_told(login: Login) -> None:
    """If sbatch cannot be executed, the line has the kernel's error."""
    installed_as(login, "link")
    login.program("bin/sbatch", "#!/no/such/interpreter\n")
    done = login.sbatch("--no-hadar", "job.sh")
    assert done.returncode == 127
    assert f"cannot execute {login.root}/bin/sbatch: No such file" in done.stderr

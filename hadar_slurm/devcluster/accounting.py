"""The accounting of a local cluster: slurmdbd and its own MariaDB server.

The server has no TCP port. Its socket lies in a directory of mode 0700, and it admits only the user
that started the cluster. slurmdbd and slurmctld listen on TCP ports and admit only programs with
the cluster's munge key.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path

from hadar_slurm.devcluster.config import Nodes, cluster_name
from hadar_slurm.devcluster.processes import log_tail, processes_of, start_daemon, wait_until
from hadar_slurm.errors import ClusterError
from hadar_slurm.slurm.client.runner import Runner

# The account of the cluster's users.
ACCOUNT = "local"

DAEMONS = ("mariadbd", "slurmdbd")
SUBDIRECTORIES = ("database", *(f"log/{name}" for name in DAEMONS))

_DATABASE = "slurm_acct_db"
_START_LIMIT_S = 20.0
# A MariaDB server brings the statements that create its own tables; the name changed in 11.
_SYSTEM_TABLES = ("mysql_system_tables.sql", "mariadb_system_tables.sql")
# Small files, and no wait for the disk: nothing in this database outlives the cluster. A server
# that no longer knows one of the `loose` options goes without it.
_SERVER_OPTIONS = """
    --skip-networking --skip-log-bin --loose-innodb-buffer-pool-size=64M
    --loose-innodb-lock-wait-timeout=900 --innodb-data-file-path=ibdata1:1M:autoextend
    --loose-innodb-autoextend-increment=1 --loose-innodb-log-file-size=4M
    --loose-innodb-flush-log-at-trx-commit=0 --loose-innodb-flush-method=nosync
    --loose-innodb-doublewrite=0
""".split()


def slurm_conf_lines(directory: Path, nodes: Nodes, port: int) -> str:
    """Return what slurm.conf says of accounting where slurmdbd listens on `port`."""
    gpu_types = sorted({gpu_type for node in nodes for gpu_type in node.gpus})
    tres = ",".join(["gres/gpu", *(f"gres/gpu:{gpu_type}" for gpu_type in gpu_types)])
    return f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={directory}/munge/socket
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES={tres}
AccountingStoreFlags=job_comment
JobAcctGatherType=jobacct_gather/linux
"""


def prepare(directory: Path, port: int, user: str) -> None:
    """Close the server's directory, and write slurmdbd.conf, which only its user may read."""
    (directory / "database").chmod(0o700)
    conf = directory / "slurmdbd.conf"
    conf.touch(mode=0o600)
    text = f"""\
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
AuthType=auth/munge
AuthInfo=socket={directory}/munge/socket
LogFile={directory}/log/slurmdbd/log
PidFile={directory}/pid/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={user}
StorageLoc={_DATABASE}
"""
    conf.write_text(text, encoding="utf-8")


def start(
    directory: Path, binaries: Mapping[str, str], *, user: str, port: int, runner: Runner
) -> None:
    """Start the server and slurmdbd, and register the cluster, an account and `user` in it."""
    _create_database(directory, binaries["mariadbd"], user)
    address = f"{directory}/database/socket"
    server = ["setsid", "--fork", binaries["mariadbd"], *_server_words(directory, user)]
    server += [f"--socket={address}", f"--pid-file={directory}/pid/mariadbd.pid"]
    server.append(f"--log-error={directory}/log/mariadbd/log")
    start_daemon(server, directory, name="mariadbd")
    _wait_for(directory, "mariadbd", lambda: _listens(socket.AF_UNIX, address))
    start_daemon([binaries["slurmdbd"]], directory, variables={"MYSQL_UNIX_PORT": address})
    _wait_for(directory, "slurmdbd", lambda: _slurmdbd_serves(directory, port))
    add = [binaries["sacctmgr"], "--immediate", "--quiet", "add"]
    runner.run([*add, "cluster", cluster_name(directory)])
    runner.run([*add, "account", ACCOUNT])
    runner.run([*add, "user", user, f"account={ACCOUNT}", f"defaultaccount={ACCOUNT}"])


def _server_words(directory: Path, user: str) -> list[str]:
    # A server that starts removes the temporary tables of all others in its directory for them.
    places = [f"--datadir={directory}/database/data", f"--tmpdir={directory}/database/tmp"]
    return ["--no-defaults", f"--user={user}", *places, *_SERVER_OPTIONS]


def _create_database(directory: Path, mariadbd: str, user: str) -> None:
    """Create the server's own tables and the one user that it admits."""
    for name in ("data", "tmp"):
        (directory / "database" / name).mkdir(mode=0o700)
    quoted = "'" + user.replace("\\", "\\\\").replace("'", "''") + "'@'localhost'"
    script = (
        "CREATE DATABASE mysql;\nUSE mysql;\n"
        + _system_tables(Path(mariadbd)).read_text(encoding="utf-8")
        + "\nFLUSH PRIVILEGES;\n"
        # slurmdbd would make it, but connects once more then, and MariaDB's client library 3.4.10
        # refuses all answers on such a connection (error 5027).
        + f"CREATE DATABASE {_DATABASE};\n"
        + f"CREATE USER {quoted} IDENTIFIED VIA unix_socket;\n"
        + f"GRANT ALL ON {_DATABASE}.* TO {quoted};\n"
    )
    log = directory / "log" / "mariadbd" / "out"
    argv = [mariadbd, *_server_words(directory, user), "--bootstrap"]
    run = partial(subprocess.run, input=script.encode(), timeout=_START_LIMIT_S, check=False)
    with log.open("ab") as sink:
        status = run(argv, stdout=sink, stderr=sink).returncode
    if status != 0:
        tail = log_tail(directory, "mariadbd")
        raise ClusterError(f"mariadbd cannot create a database: status {status}: {tail}")


def _system_tables(mariadbd: Path) -> Path:
    shares = [path.parents[1] / "share" for path in (mariadbd, mariadbd.resolve())]
    places = [*shares, Path("/usr/share"), Path("/usr/local/share")]
    for place, folder, name in product(places, ("mysql", "mariadb"), _SYSTEM_TABLES):
        if (path := place / folder / name).is_file():
            return path
    raise ClusterError(
        f"{mariadbd} has no {' or '.join(_SYSTEM_TABLES)} under "
        f"{', '.join(dict.fromkeys(map(str, places)))}: "
        "on Debian and Ubuntu they come with mariadb-server-core"
    )


def _slurmdbd_serves(directory: Path, port: int) -> bool:
    # Another program may listen on the port: then slurmdbd ends as soon as it logs "started".
    log = directory / "log" / "slurmdbd" / "log"
    has_started = log.exists() and " started" in log.read_text(encoding="utf-8", errors="replace")
    is_open = has_started and _listens(socket.AF_INET, ("127.0.0.1", port))
    return is_open and _runs(directory, "slurmdbd")


def _listens(family: socket.AddressFamily, address: str | tuple[str, int]) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as client:
        return client.connect_ex(address) == 0


def _runs(directory: Path, program: str) -> bool:
    return any(process.program == program for process in processes_of(directory))


def _wait_for(directory: Path, program: str, is_ready: Callable[[], bool]) -> None:
    def has_ended() -> bool:
        # A daemon that has just gone into the background may escape one look.
        return not wait_until(lambda: _runs(directory, program), 0.5)

    if wait_until(lambda: is_ready() or has_ended(), _START_LIMIT_S) and is_ready():
        return
    how = "stopped while starting" if has_ended() else f"was not ready in {_START_LIMIT_S:g} s"
    raise ClusterError(f"{program} {how}; its log ends: {log_tail(directory, program)}")

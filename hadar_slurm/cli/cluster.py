"""hadar cluster: a real Slurm on this machine with simulated GPUs, for trials and tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hadar_slurm.cli.completing import JsonOption
from hadar_slurm.devcluster.accounting import ACCOUNT
from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.devcluster.config import load_nodes, parse_nodes
from hadar_slurm.devcluster.directory import default_directory
from hadar_slurm.errors import HadarError, UsageError

app = typer.Typer(
    help="Start, show and stop a real Slurm on this machine with simulated GPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        help="Directory for all files of the cluster.",
        show_default="hadar-cluster-UID in $XDG_RUNTIME_DIR or /tmp",
    ),
]


@app.command()
def up(
    nodes: Annotated[
        str,
        typer.Option(
            help="GPUs of each node, or a YAML file; + joins types in one node, 3* repeats a node."
        ),
    ] = "v100:4,v100:4,p100:4,k80:4,v100:2+k80:2",
    directory: Directory = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds to wait for all nodes to be idle.")
    ] = 30.0,
    accounting: Annotated[
        bool,
        typer.Option("--accounting", help="Also run slurmdbd: sacct, accounts, QOS and limits."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start a cluster and wait until every node is idle."""
    with _failures_in_one_line():
        is_file = nodes.endswith((".yaml", ".yml")) or Path(nodes).is_file()
        shapes = load_nodes(Path(nodes)) if is_file else parse_nodes(nodes)
        place = directory or default_directory()
        # On a terminal; elsewhere rich prints nothing.
        with Console(stderr=True).status("starting Slurm") as bar:
            words = f"starting Slurm: {{}} of {len(shapes)} nodes idle"
            cluster = LocalCluster.up(
                place,
                shapes,
                accounting=accounting,
                timeout_s=timeout_s,
                on_wait=lambda num_idle: bar.update(words.format(num_idle)),
            )
        _print_status(cluster, as_json=as_json)
    if not as_json:
        typer.echo(_next_steps(cluster))


@app.command()
def status(directory: Directory = None, as_json: JsonOption = False) -> None:
    """Show the nodes and count the jobs."""
    with _failures_in_one_line():
        cluster = LocalCluster.attach(directory or default_directory())
        _print_status(cluster, as_json=as_json)


@app.command()
def down(directory: Directory = None) -> None:
    """Cancel all jobs, stop the cluster and remove its files."""
    directory = directory or default_directory()
    with _failures_in_one_line():
        if not LocalCluster.exists(directory):
            typer.echo(f"no cluster in {directory}: nothing to stop")
            return
        cluster = LocalCluster.attach(directory)
        cluster.down()
    typer.echo(f"stopped the cluster and removed {cluster.directory}")


@contextmanager
def _failures_in_one_line() -> Iterator[None]:
    try:
        yield
    except HadarError as error:
        typer.echo(f"hadar cluster: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, UsageError) else 1) from None


def _print_status(cluster: LocalCluster, *, as_json: bool) -> None:
    seen = cluster.status()
    if as_json:
        nodes = [{"name": n.name, "state": n.state, "gpus": dict(n.gpus)} for n in seen.nodes]
        fields = {key: getattr(seen, key) for key in ("running", "pending", "accounting")}
        places = {"directory": str(cluster.directory), "environment": cluster.environment()}
        typer.echo(json.dumps({**places, "nodes": nodes, **fields}))
        return
    width = max(len(node.name) for node in seen.nodes)
    for node in seen.nodes:
        gpus = ", ".join(f"{count} {gpu_type}" for gpu_type, count in node.gpus.items())
        typer.echo(f"{node.name:{width}}  {node.state:10}  {gpus}")
    typer.echo(f"{seen.running} jobs running, {seen.pending} pending")
    if seen.accounting != "none":
        typer.echo(f"accounting {seen.accounting}")


def _next_steps(cluster: LocalCluster) -> str:
    exports = "\n".join(f"  export {key}={value}" for key, value in cluster.environment().items())
    ended = f"""To see ended jobs, and to let another user submit:
  sacct --allusers
  sacctmgr --immediate add user NAME account={ACCOUNT}
"""
    return f"""
To use it from this shell:
{exports}
Then, for example:
  sbatch --gres=gpu:1 --wrap 'echo $CUDA_VISIBLE_DEVICES'
  hadar cluster status
{ended if cluster.accounting else ""}To stop it:
  hadar cluster down --dir {cluster.directory}"""


if __name__ == "__main__":
    app()

"""The documents agree with the code."""

from pathlib import Path
from typing import Any

import yaml
from fakes import policy_page

from hadar_slurm.config import Config, SolverConfig, load_config
from hadar_slurm.daemon.options import option_parser
from hadar_slurm.engine.loop import RoundRecord, run_rounds
from hadar_slurm.jobspec.throughput_table import parse_table
from hadar_slurm.lab.traces.cluster import parse_cluster
from hadar_slurm.lab.traces.load import parse_gavel_trace
from hadar_slurm.policies.hadar_paper.utility import UTILITIES
from hadar_slurm.policies.policy import Policy, PolicyOptions
from hadar_slurm.policies.registry import POLICY_NAMES
from hadar_slurm.resources import data_file
from hadar_slurm.sim.backend import SimBackend
from hadar_slurm.submit.own_options import FLAGS, KNOWN, PREFIX, USAGE

ROOT = Path(__file__).parents[2]
TRACE = "LM (batch size 80)\t\t\t\t0\t900\t{gang}\t1\t-1\t{arrival}"


def _policy_of_the_page() -> Policy:
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(policy_page.source(), "writing-a-policy.md", "exec", dont_inherit=True), names)
    policy: Policy = names["make"](PolicyOptions())
    return policy


def test_the_policy_shown_on_the_page_runs_a_workload_to_its_end() -> None:
    """The complete policy of docs/writing-a-policy.md makes valid plans until all jobs are done."""
    table_file = data_file("throughputs.json")
    table = parse_table(table_file.read_text(encoding="utf-8"), str(table_file))
    lines = [TRACE.format(gang=1 + i % 2, arrival=40 * i) for i in range(12)]
    world = SimBackend(
        parse_cluster("2xV100,4xK80", gpus_per_node=2), parse_gavel_trace(lines, table, "page")
    )
    records: list[RoundRecord] = []
    run_rounds(
        world,
        _policy_of_the_page(),
        records.append,
        length_s=60,
        now_s=lambda: world.now_s,
        clock=lambda: 0.0,
        max_rounds=500,
    )
    assert world.num_unfinished == 0
    assert [record.errors for record in records if record.errors] == []


def test_the_shipped_configuration_shows_every_key_with_its_default() -> None:
    """slurm_conf/hadar.yaml is the default configuration, written out."""
    path = ROOT / "slurm_conf" / "hadar.yaml"
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert load_config(path) == Config()
    assert set(tree) == set(Config.model_fields)
    assert set(tree["solver"]) == set(SolverConfig.model_fields)


def test_every_option_of_the_commands_is_documented() -> None:
    """The README names each option of hadar-sbatch and hadard, each policy and each utility."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    daemon = [
        o for action in option_parser()._actions for o in action.option_strings if o[:2] == "--"
    ]
    hidden = {"--help", "--version", "--log-level"}
    wanted = [
        *(PREFIX + name for name in KNOWN),
        *(option for option in daemon if option not in hidden),
        *POLICY_NAMES,
        *UTILITIES,
    ]
    assert [word for word in wanted if word not in readme] == []
    ours = [*(PREFIX + name for name in KNOWN), *(f"--{name}" for name in FLAGS)]
    page = (ROOT / "docs" / "hadar-sbatch.md").read_text(encoding="utf-8")
    assert [option for option in ours if option not in USAGE] == []
    assert [option for option in ours if f"| `{option}" not in page] == []

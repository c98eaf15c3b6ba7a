"""What a rehearsal is asked to do, and the names of everything it makes. Pure: no I/O but reading the environment."""

from __future__ import annotations

import argparse
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from megamoe_atom.problem import Problem, Reason

from megamoe.resources import checkout_root

LABEL = "org.megamoe.rehearsal=1"  # on every container, volume, network and image made here; removal goes by it
PREFIX = "mmreh-"
MAX_NODES = 32
DEFAULT_SUBNET = ipaddress.IPv4Network("172.29.77.0/24")
# fault -> what it does to the engine (docker/reference_engine); "none" is the plain rehearsal.
FAULTS: dict[str, str] = {
    "none": "no fault",
    "gate_up_mispaired": "weights laid out as separated while the kernel reads them interleaved",
    "expert_zeroed": "one expert's weights are zero",
    "http_5xx": "every 20th request is answered with 500",
    "never_ready": "the engine never becomes healthy",
}
SELFTEST = ("on", "off")


@dataclass(frozen=True, slots=True)
class Settings:
    """One rehearsal. Ports are on 127.0.0.1 of this machine; the subnet holds registry, gateway and nodes."""

    root: Path
    nodes: int = 2
    fault: str = "none"
    selftest: str = "on"
    dataset: Path | None = None
    subnet: ipaddress.IPv4Network = DEFAULT_SUBNET
    registry_port: int = 15000
    gateway_port: int = 18080
    need_disk_gib: float = 12.0

    @property
    def state(self) -> Path:
        return self.root / ".state" / "rehearsal"

    @property
    def registry_address(self) -> str:
        return str(self.subnet[2])

    @property
    def gateway_address(self) -> str:
        return str(self.subnet[3])

    @property
    def questions(self) -> Path:
        return self.dataset or self.root / "tests/rehearsal/data/easy_sums.jsonl"

    @property
    def fewshot(self) -> Path | None:
        """Three examples as easy as our sums (all prompts begin alike, so the engine reads them once).

        None for questions of one's own: those get the examples that `megamoe gsm8k` takes by itself.
        """
        return None if self.dataset else self.root / "tests/rehearsal/data/easy_fewshot.jsonl"

    def node_names(self) -> list[str]:
        return [f"node{i}" for i in range(1, self.nodes + 1)]

    def node_address(self, name: str) -> str:
        return str(self.subnet[10 + int(name.removeprefix("node"))])

    def engine_env(self) -> dict[str, str]:
        """Environment of the engine's container that makes the fault; empty for the plain rehearsal."""
        env = {} if self.fault == "none" else {"MEGAMOE_REHEARSAL_FAULT": self.fault}
        if self.selftest == "off":
            env["MEGAMOE_SELFTEST"] = "off"
        return env


def parse(
    nodes: int, fault: str | None, selftest: str, dataset: str | None, *, environ: Mapping[str, str] = os.environ
) -> Settings:
    """Checks every word before anything is touched.

    Raises:
        Problem: exit 2, all wrong options named with what is allowed; or no checkout (exit 2).
    """
    wrong: list[Reason] = []
    if not 1 <= nodes <= MAX_NODES:
        wrong.append(
            Reason(
                "rehearse_nodes",
                f"NODES={nodes}",
                "a rehearsal rolls out to at least one node, and each node is a container with an engine of its own",
                f"give NODES from 1 to {MAX_NODES}",
            )
        )
    fault = fault or "none"
    if fault not in FAULTS:
        wrong.append(
            Reason(
                "rehearse_fault",
                f"FAULT={fault} is unknown",
                "only a fault that the engine can make proves that a gate catches it",
                "give FAULT as one of: " + ", ".join(FAULTS),
            )
        )
    if selftest not in SELFTEST:
        wrong.append(
            Reason(
                "rehearse_selftest",
                f"SELFTEST={selftest} is unknown",
                "it switches the adapter's start-up proof",
                "give SELFTEST as one of: " + ", ".join(SELFTEST),
            )
        )
    path = Path(dataset).expanduser().resolve() if dataset else None
    if path is not None and not path.is_file():
        wrong.append(
            Reason(
                "rehearse_dataset",
                f"{path} is not a file",
                "the gate needs GSM8K JSONL questions",
                "give DATASET the path of a JSONL file with question and answer in each line",
            )
        )
    subnet, ports = DEFAULT_SUBNET, [15000, 18080]
    try:
        subnet = ipaddress.IPv4Network(environ.get("MEGAMOE_REHEARSAL_SUBNET", str(subnet)))
        if subnet.prefixlen > 24:
            raise ValueError("smaller than /24")
    except ValueError as error:
        wrong.append(
            Reason(
                "rehearse_subnet",
                f"MEGAMOE_REHEARSAL_SUBNET: {error}",
                "the nodes get addresses from it",
                "give a private IPv4 network of /24 or larger, such as 172.29.77.0/24",
            )
        )
    for index, name in enumerate(("MEGAMOE_REHEARSAL_REGISTRY_PORT", "MEGAMOE_REHEARSAL_PORT")):
        text = environ.get(name, str(ports[index]))
        if not text.isdecimal() or not 1 <= int(text) <= 65535:
            wrong.append(
                Reason(
                    "rehearse_port",
                    f"{name}={text}",
                    "it is a TCP port of this machine",
                    "give a number from 1 to 65535",
                )
            )
        else:
            ports[index] = int(text)
    if wrong:
        raise Problem.of(wrong)
    root = checkout_root()
    if root is None:
        raise Problem(
            "rehearse_checkout",
            what="megamoe was installed without its repository",
            why="a rehearsal builds the images and runs the playbooks of the checkout",
            fix="clone the repository and run `make rehearse` (or scripts/rehearse.sh) in it",
        )
    return Settings(root, nodes, fault, selftest, path, subnet, ports[0], ports[1])


def from_words(argv: list[str]) -> Settings | None:
    """The settings of a command line, read with the standard library alone. Options that it does not know are left
    to the CLI itself, which also says what is wrong with a number that is none (None here).

    Raises:
        Problem: as `parse`.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--nodes", default="2")
    for name in ("--fault", "--selftest", "--dataset"):
        parser.add_argument(name, default={"--selftest": "on"}.get(name))
    options, _ = parser.parse_known_args(argv)
    if not options.nodes.lstrip("-").isdecimal():
        return None
    return parse(int(options.nodes), options.fault, options.selftest, options.dataset)

"""The container engine of a host: is it there, is it the host's own, does it know what the plan asks. Pure."""

from __future__ import annotations

from megamoe.deploy.profiles import load_profile
from megamoe.deploy.schema import Deploy
from megamoe.envelope import Finding
from megamoe.preflight.policy import below, policy
from megamoe.preflight.reading import Facts, finding, mapping, text, unknown


def engine(facts: Facts, deploy: Deploy) -> list[Finding]:
    engines = facts.get("engines")
    wanted = deploy.container.engine
    if not isinstance(engines, dict):
        said = unknown("ENGINE", "the container engine is unknown", f"{wanted} is planned", "collect facts on the host")
        return [said, *_beside(facts, deploy)]
    if wanted not in engines:
        return [
            finding(
                "ENGINE_MISSING",
                "warn",
                f"{wanted} is not installed",
                "the plan names it",
                "role container_engine installs it",
            )
        ]
    return [*_version(text(engines[wanted]), deploy), *_beside(facts, deploy)]


def _beside(facts: Facts, deploy: Deploy) -> list[Finding]:
    """What has facts of its own, and is judged without the engine's version, too."""
    return [*_init(facts, deploy), *_own(facts, deploy), *_cdi(facts, deploy)]


def _init(facts: Facts, deploy: Deploy) -> list[Finding]:
    """podman's --init needs a program of its own, which distributions package apart (seen with Debian's 4.3.1)."""
    there = facts.get("podman_init")
    if deploy.container.engine != "podman" or not deploy.container.init or there is not False:
        return []
    return [finding("PODMAN_INIT_MISSING", "error", "podman has no catatonit, the plan has init: true",
                    "podman exits 125: 'container-init binary not found on the host'", "install the package catatonit")]


def _cdi_names(deploy: Deploy) -> list[str]:
    return [d for d in deploy.container.devices or [] if "=" in d and not d.startswith("/")]


def _version(shown: str, deploy: Deploy) -> list[Finding]:
    name, wants = deploy.container.engine, policy()[deploy.container.engine]
    old = below(shown, wants["least"])
    out = []
    if old is None:
        return [
            unknown(
                "ENGINE_VERSION",
                f"the version of {name} cannot be read from {shown!r}",
                f"{wants['least']} or later is needed",
                f"give engines.{name} (`{name} --version`)",
            )
        ]
    given = deploy.container.security_opts
    options = given if given is not None else load_profile(deploy.model.profile).container["security_opts"]
    opened = deploy.container.privileged or any("seccomp" in o and "unconfined" in o for o in options)
    if old:
        out.append(
            finding(
                "ENGINE_OLD",
                "warn" if opened else "error",
                f"{name} {shown} is older than {wants['least']}",
                "its seccomp profile refuses clone3, so no thread can start in an image of Ubuntu 22.04 or later"
                if name == "docker"
                else "it knows neither keep-groups nor CDI names",
                f"update {name}" + (" (seccomp is off in this plan, so it works for now)" if opened else ""),
            )
        )
    if _cdi_names(deploy) and below(shown, wants["cdi_least"]):
        out.append(
            finding(
                "ENGINE_NO_CDI",
                "error",
                f"{name} {shown} takes no CDI name ({', '.join(_cdi_names(deploy))})",
                f"--device takes them from {wants['cdi_least']}",
                "list /dev/kfd and /dev/dri instead",
            )
        )
    return out


def _cdi(facts: Facts, deploy: Deploy) -> list[Finding]:
    names = _cdi_names(deploy)
    specs = facts.get("cdi_specs")
    if not names:
        return []
    if not isinstance(specs, list):
        return [
            unknown(
                "CDI",
                "whether a CDI spec is installed is unknown",
                f"{', '.join(names)} is planned",
                "give cdi_specs (the files in /etc/cdi and /var/run/cdi)",
            )
        ]
    if not any("amd" in text(s, 200) for s in specs):
        return [
            finding(
                "CDI_MISSING",
                "error",
                f"no AMD CDI spec in /etc/cdi or /var/run/cdi, the plan has {', '.join(names)}",
                "'AMD CDI spec not found', and the container does not start",
                "install amd-container-toolkit and run `amd-ctk cdi generate`, or list /dev/kfd and /dev/dri",
            )
        ]
    return []


def _own(facts: Facts, deploy: Deploy) -> list[Finding]:
    """A desktop engine runs in a VM without the GPUs; a rootless one maps the device groups away."""
    info = mapping(facts.get("engine_info"))
    out = []
    system, kernel = text(info.get("os")), text(info.get("kernel"))
    if "desktop" in system.lower() or (kernel and text(facts.get("kernel")) and kernel != text(facts.get("kernel"))):
        out.append(
            finding(
                "ENGINE_NOT_HOST",
                "error",
                f"the engine runs on {system or kernel!r}, this host's kernel "
                "is "
                f"{text(facts.get('kernel')) or 'another'}",
                "it is in a virtual machine (a desktop engine or a remote context), where the GPUs are not",
                "`docker context use default`, and check DOCKER_HOST",
            )
        )
    if info.get("rootless") is True and not deploy.container.rootless:
        out.append(
            finding(
                "ENGINE_ROOTLESS",
                "error",
                "the engine runs rootless, the plan does not say so",
                "its user namespace maps the device groups away: /dev/kfd stays closed although rocm-smi works",
                "use the engine of root, or podman with container.rootless: true and group_add: [keep-groups]",
            )
        )
    return out

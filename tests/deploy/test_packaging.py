"""Image files, compose file and systemd units name flags, paths and words that exist."""

from __future__ import annotations

import functools
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from murmur.privacy.policy import Policy

PROJECT = Path(__file__).resolve().parents[2]
DEPLOY = PROJECT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
NODES = sorted(name for name in SERVICES if name.startswith("node-"))
DEVICES = sorted(name for name in SERVICES if name.startswith("device-"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
# What fl_app.device.node_settings reads from a node-config.
WORDS = {"clients", "data", "public", "shape", "classes", "policy", "state"}


@functools.lru_cache
def flags(program: str) -> frozenset[str]:
    """The options that an installed program knows; ``program`` may be one of murmur's tools."""
    name, *tool = program.split()
    command = [str(Path(sys.executable).parent / name), *tool, "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return frozenset(re.findall(r"--[a-z][a-z-]+", text))


def options(words: list[str]) -> dict[str, str]:
    """``--name=value`` and ``--name value`` as a mapping; flags without a value have ""."""
    found: dict[str, str] = {}
    name = None
    for word in words:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            found[name] = value
        elif name is not None:
            found[name] = word
    return found


def node_words(config: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in shlex.split(config))


def targets(service: dict[str, Any]) -> dict[str, bool]:
    """Where something is mounted, and whether the container can write there."""
    volumes = [volume.split(":") for volume in service.get("volumes", [])]
    mounted = {place[1]: place[2:] != ["ro"] for place in volumes}
    secrets = [s if isinstance(s, str) else s["target"] for s in service.get("secrets", [])]
    return mounted | {f"/run/secrets/{name}": False for name in secrets}


def mount_of(path: str, service: dict[str, Any]) -> str:
    """The mount that ``path`` lies in; AssertionError if there is none."""
    found = [place for place in targets(service) if path == place or path.startswith(f"{place}/")]
    assert found, f"{path}: nothing is mounted there"
    return max(found, key=len)


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_starts_with_flags_and_paths_that_exist(name):
    service = SERVICES[name]
    program = " ".join(service.get("entrypoint", ["flower-superlink"]))
    found = options(service["command"])
    assert found.keys() <= flags(program), found.keys() - flags(program)
    for value in found.values():
        if value.startswith("/"):
            mount_of(value, service)
    assert "--insecure" not in found


@pytest.mark.parametrize("name", NODES)
def test_supernode_runs_nothing_that_it_is_sent_and_sees_no_data(name):
    service = SERVICES[name]
    found = options(service["command"])
    assert mount_of(found["--superexec-auth-secret-file"], service)
    assert set(targets(service)) == {"/var/lib/murmur"} | {
        f"/run/secrets/{file}" for file in ("ca.pem", "node.key", "supernode.secret")
    }
    assert service["entrypoint"] == ["murmur", "supernode"]
    device = SERVICES[name.replace("node", "device")]
    assert device["network_mode"] == f"service:{name}"
    assert device["entrypoint"] == ["murmur", "device"]
    assert "/run/secrets/node.key" not in targets(device)
    assert {s["source"] for s in device["secrets"]} < {
        s["source"] for s in service["secrets"] if isinstance(s, dict)
    }


@pytest.mark.parametrize("name", DEVICES)
def test_a_devices_owner_decides_on_files_that_its_container_cannot_change(name):
    service = SERVICES[name]
    words = node_words(options(service["command"])["--node-config"])
    assert set(words) == WORDS
    writable = targets(service)
    for key in ("data", "public", "policy"):
        assert not writable[mount_of(words[key], service)], key
    assert writable[mount_of(words["state"], service)]


def test_devices_share_neither_clients_nor_keys_nor_secrets_nor_data_nor_state():
    for names, pick in (
        (DEVICES, lambda s: node_words(options(s["command"])["--node-config"])["clients"]),
        (NODES, lambda s: next(x["source"] for x in s["secrets"][1:] if x["target"] == "node.key")),
        (DEVICES, lambda s: next(x["source"] for x in s["secrets"])),
        (DEVICES, lambda s: next(v for v in s["volumes"] if v.endswith(":/data:ro"))),
        (NODES + DEVICES, lambda s: next(v for v in s["volumes"] if ":/var/lib/murmur" in v)),
        (DEVICES, lambda s: next(v for v in s["volumes"] if ":/etc/murmur/policy.yaml" in v)),
    ):
        assert len({pick(SERVICES[name]) for name in names}) == len(names) >= 3


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_hardened_limited_watched_and_restarted(name):
    service = SERVICES[name]
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped"
    assert {"cpus", "memory"} <= set(service["deploy"]["resources"]["limits"])
    assert service["healthcheck"]["test"][0] == "CMD"
    if service["healthcheck"]["test"][2] == "-c":
        compile(service["healthcheck"]["test"][3], "healthcheck", "exec")


def test_only_the_superlink_is_reached_from_outside():
    assert COMPOSE["networks"]["federation"]["internal"] is True
    assert [name for name, s in SERVICES.items() if "ports" in s] == ["superlink"]
    assert all(SERVICES[name]["networks"] == ["federation"] for name in NODES)


def test_all_that_compose_names_is_defined():
    for name, service in SERVICES.items():
        for secret in service["secrets"]:
            source = secret if isinstance(secret, str) else secret["source"]
            assert source in COMPOSE["secrets"], (name, source)
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source.startswith("./") or source in COMPOSE["volumes"], (name, source)
        target = service["build"]["target"]
        assert f" AS {target}\n" in (DEPLOY / "Dockerfile").read_text()
        assert (DEPLOY / service["build"]["context"]).resolve() == PROJECT


def test_images_run_as_nobody_special_from_a_standard_image():
    text = (DEPLOY / "Dockerfile").read_text()
    assert re.findall(r"^FROM (\S+)", text, re.M) == ["python:3.11-slim", "base", "base"]
    assert "http" not in text
    assert text.count("\nUSER 10001:10001\n") == 2
    for stage, program in (
        ("client", '["murmur", "device"]'),
        ("server", '["flower-superlink"]'),
    ):
        body = text.partition(f" AS {stage}\n")[2].partition("\nFROM ")[0]
        assert f"ENTRYPOINT {program}" in body
        assert ("simulation" in body) == (stage == "server")
    for path in re.findall(r"^COPY (.+) \S+$", text, re.M):
        ignored = (DEPLOY / "Dockerfile.dockerignore").read_text()
        for name in path.split():
            assert (PROJECT / name).exists() and f"!{name}\n" in ignored, name


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_start_with_flags_that_exist(unit):
    text = unit.read_text()
    (command,) = re.findall(r"^ExecStart=(.+)$", text, re.M)
    program, *words = command.split()
    found = options(words)
    tool = words[0] if Path(program).name == "murmur" else None
    assert found.keys() <= flags(f"murmur {tool}" if tool else Path(program).name)
    if "supernode" in unit.name:
        assert tool == "supernode" and "--superexec-auth-secret-file" in found
    if tool == "device":
        config = re.search(r"NODE_CONFIG='([^']+)'", text)
        words = node_words(config[1])
        assert set(words) == WORDS
        (state,) = re.findall(r"^StateDirectory=(.+)$", text, re.M)
        assert words["state"] == f"/var/lib/{state}".replace("%i", "NAME")


def test_every_device_every_supernode_and_the_superlink_have_a_user_and_a_state_of_their_own():
    users, states = [], []
    for unit in UNITS:
        text, name = unit.read_text(), unit.name.removesuffix(".service")
        of_its_own = name.replace("@", "-%i")
        (user,) = re.findall(r"^User=(.+)$", text, re.M)
        (group,) = re.findall(r"^Group=(.+)$", text, re.M)
        assert user == group == of_its_own
        assert f"murmur-{name.removeprefix('murmur-').replace('@', '-NAME')}`" in text.replace(
            "#\n# ", ""
        ).replace("\n# ", " ")
        (state,) = re.findall(r"^StateDirectory=(.+)$", text, re.M)
        assert state.endswith("/%i") == ("@" in name)
        assert "StateDirectoryMode=0700" in text and "UMask=0077" in text
        users.append(user)
        states.append(state.removesuffix("/%i"))
    assert len(set(users)) == len(set(states)) == len(UNITS) == 3


def test_neither_supernode_nor_superlink_reaches_a_devices_data_and_state():
    for unit in UNITS:
        if "device" not in unit.name:
            (hidden,) = re.findall(r"^InaccessiblePaths=(.+)$", unit.read_text(), re.M)
            assert {"-/srv/murmur", "-/var/lib/murmur"} <= set(hidden.split())


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_the_units_and_finds_them_closed(unit, tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("this machine has no systemd-analyze")
    text = unit.read_text().replace("/opt/murmur/bin/", f"{Path(sys.executable).parent}/")
    copy = tmp_path / unit.name.replace("@.", "@clinic.")
    copy.write_text(text)
    if copy.name != unit.name:
        (tmp_path / unit.name).write_text(text)
    run = functools.partial(subprocess.run, capture_output=True, text=True, check=False)
    verified = run(["systemd-analyze", "verify", str(copy)])
    assert verified.returncode == 0 and "Unknown" not in verified.stderr, verified.stderr
    # 0 is closed, 10 is open; 3 is where systemd stops calling a service "OK".
    closed = run(["systemd-analyze", "security", "--offline=yes", "--threshold=30", str(copy)])
    assert closed.returncode == 0, closed.stdout[-2000:]


def test_the_values_for_flowers_chart_isolate_the_supernode_as_compose_does():
    values = yaml.safe_load((DEPLOY / "kubernetes" / "supernode.values.yaml").read_text())
    node = values["supernode"]
    found = options(node["extraArgs"])
    assert found.keys() <= flags("flower-supernode")
    (mount,) = node["volumeMounts"]
    assert found["--superexec-auth-secret-file"].startswith(f"{mount['mountPath']}/")
    assert [volume["name"] for volume in node["volumes"]] == [mount["name"]]
    assert node["isolationMode"] == "process" and not values["superexec"]["enabled"]
    assert values["tls"]["enabled"] and values["global"]["nodeAuth"]["enabled"]
    assert node["image"]["tag"].startswith(version("flwr"))


def test_the_example_policy_is_valid():
    assert Policy.load(DEPLOY / "policy.example.yaml").defect is None

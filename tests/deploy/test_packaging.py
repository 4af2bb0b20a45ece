"""Image files, compose file and systemd units name flags, paths and words that exist."""

from __future__ import annotations

import functools
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from fl_app.tools.options import parser_of
from murmur.privacy.policy import Policy

PROJECT = Path(__file__).resolve().parents[2]
DEPLOY = PROJECT / "deploy"
VARIABLES = {"DEVICE": "7", "SUPERLINK": "murmur.example.org:9092"}
_VARIABLE = re.compile(r"\$\{(\w+)(?::-((?:\$\{[^}]*\}|[^}])*))?\}")


def interpolated(text: str, values: Mapping[str, str]) -> str:
    """``text`` as compose fills it in: ``${NAME}`` and ``${NAME:-otherwise}``, also nested."""
    text = re.sub(r"^ *#.*\n", "", text, flags=re.M)
    while found := _VARIABLE.search(text):
        name, otherwise = found.groups()
        assert name in values or otherwise is not None, f"{name}: nobody sets it"
        text = text[: found.start()] + values.get(name, otherwise or "") + text[found.end() :]
    assert "$" not in text, text
    return text


COMPOSE = yaml.safe_load(interpolated((DEPLOY / "compose.yaml").read_text(), VARIABLES))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
# What fl_app.device.node_settings reads from a node-config.
WORDS = {"clients", "data", "public", "shape", "classes", "policy", "state"}
KEYS = {  # of a service, by the Compose Specification, which refuses others
    *("build", "cap_drop", "command", "depends_on", "deploy", "entrypoint", "environment"),
    *("healthcheck", "image", "init", "logging", "network_mode", "networks", "pids_limit"),
    *("ports", "profiles", "read_only", "restart", "secrets", "security_opt"),
    *("stop_grace_period", "tmpfs", "volumes"),
}


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
    assert service.keys() <= KEYS


def test_supernode_runs_nothing_that_it_is_sent_and_sees_no_data():
    node, device = SERVICES["node"], SERVICES["device"]
    found = options(node["command"])
    assert found["--superlink"] == VARIABLES["SUPERLINK"]
    assert mount_of(found["--superexec-auth-secret-file"], node)
    assert set(targets(node)) == {"/var/lib/murmur"} | {
        f"/run/secrets/{file}" for file in ("ca.pem", "node.key", "supernode.secret")
    }
    assert node["entrypoint"] == ["murmur", "supernode"]
    assert device["network_mode"] == "service:node"
    assert device["entrypoint"] == ["murmur", "device"]
    assert device["secrets"] == ["supernode.secret"]


def test_a_devices_owner_decides_on_files_that_its_container_cannot_change():
    service = SERVICES["device"]
    words = node_words(options(service["command"])["--node-config"])
    assert set(words) == WORDS and words["clients"] == VARIABLES["DEVICE"]
    writable = targets(service)
    for key in ("data", "public", "policy"):
        assert not writable[mount_of(words[key], service)], key
    assert writable[mount_of(words["state"], service)]


def test_a_second_device_is_the_same_two_services_with_another_number():
    text = (DEPLOY / "compose.yaml").read_text()
    one, two = (interpolated(text, {"DEVICE": number}) for number in "12")
    differing = [
        line for line, other in zip(one.split("\n"), two.split("\n"), strict=True) if line != other
    ]
    own = ("clients=", "nodes/1/data", "nodes/1/policy.yaml", "node.key", "supernode.secret")
    assert len(differing) == 5
    assert all(word in line for word, line in zip(own, differing, strict=True))
    # Without a number nothing starts: there is no folder of that name, and no such client.
    assert interpolated(text, {}).count("nodes/none/") == 4
    assert 'clients="none"' in interpolated(text, {})


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_hardened_limited_watched_and_restarted(name):
    service = SERVICES[name]
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {"cpus", "memory"} <= set(service["deploy"]["resources"]["limits"])
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"][:3] == ["CMD", "python", "-c"]
    compile(service["healthcheck"]["test"][3], "healthcheck", "exec")


def test_only_the_superlink_is_reached_from_outside():
    assert COMPOSE["networks"]["federation"] == {"external": True, "name": "murmur"}
    assert "docker network create --internal murmur " in (DEPLOY / "compose.yaml").read_text()
    assert [name for name, s in SERVICES.items() if "ports" in s] == ["superlink"]
    assert SERVICES["node"]["networks"] == ["federation"]
    assert "networks" not in SERVICES["device"]  # it has its node's


def commands_of_the_head() -> list[list[str]]:
    """What the head of compose.yaml has typed in the server's container."""
    head = (DEPLOY / "compose.yaml").read_text().partition("\nname: ")[0]
    typed = head.replace("\\\n#", "").splitlines()
    found = [line.partition(" exec superlink ")[2] for line in typed]
    return [shlex.split(line) for line in found if line]


def test_a_run_is_started_in_the_servers_container_by_its_own_connection_and_table():
    connections = tomllib.loads((DEPLOY / "superlink.toml").read_text())["superlink"]
    name = connections["default"]
    told = connections[name]
    host, _, port = told["address"].partition(":")
    server = SERVICES[host]
    assert f"--port={port}" in server["command"]
    assert mount_of(told["root-certificates"], server)
    enrol, run = commands_of_the_head()
    assert enrol[:2] == ["murmur", "enrol"]
    found = options(enrol)
    assert found.keys() <= flags("murmur enrol") and found["--superlink"] == name
    assert targets(server)[mount_of(found["--table"], server)], "the table must be writable"
    words = dict(word.split("=", 1) for word in run[1:])
    assert run[0] == "murmur" and words["engine"] == "deploy"
    assert words["engine.superlink"] == name
    assert words["federation.enrolled"] == found["--table"]
    # A run's folder and the database of its SuperLink outlive the container.
    assert targets(server)[mount_of(server["environment"]["MURMUR_RESULTS"], server)]


def test_a_guarded_device_is_started_with_words_that_exist():
    text = interpolated((DEPLOY / "compose.guard.yaml").read_text(), VARIABLES)
    device = yaml.safe_load(text)["services"]["device"]
    assert device["entrypoint"] == ["murmur", "guard"]
    options = PROJECT / "packages" / "murmur-guard" / "murmur_guard" / "options.yaml"
    found = parser_of("guard", options).parse_args(device["command"])
    mounted = {volume.split(":")[1] for volume in device["volumes"]}
    assert mounted == {str(found.device / "policy.yaml")}


def test_all_that_compose_names_is_defined():
    used = set()
    for name, service in SERVICES.items():
        for secret in service["secrets"]:
            assert secret in COMPOSE["secrets"], (name, secret)
            used.add(secret)
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source.startswith("./") or source in COMPOSE["volumes"], (name, source)
            used.add(source)
        for network in service.get("networks", []):
            assert network in COMPOSE["networks"], (name, network)
            used.add(network)
        for other in service.get("depends_on", []):
            assert other in SERVICES, (name, other)
        target = service["build"]["target"]
        assert f" AS {target}\n" in (DEPLOY / "Dockerfile").read_text()
        assert (DEPLOY / service["build"]["context"]).resolve() == PROJECT
    known = {*COMPOSE["secrets"], *COMPOSE["volumes"], *COMPOSE["networks"]}
    assert known <= used, known - used


def instructions() -> dict[str, list[tuple[str, str]]]:
    """The Dockerfile's instructions by stage, in their order, lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.M)
    found: dict[str, list[tuple[str, str]]] = {}
    stage: list[tuple[str, str]] = []
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        word, _, rest = line.partition(" ")
        assert word in {"FROM", "ENV", "ARG", "RUN", "WORKDIR", "COPY", "USER", "ENTRYPOINT"}, line
        if word == "FROM":
            source, _, name = rest.partition(" AS ")
            stage = found[name] = list(found.get(source, []))
            if source not in found:
                assert re.fullmatch(r"python:3\.11\.\d+-slim@sha256:[0-9a-f]{64}", source)
        stage.append((word, " ".join(rest.split())))
    return found


@pytest.mark.parametrize("stage", ["client", "server"])
def test_an_image_copies_files_that_exist_and_uses_variables_and_commands_that_are_known(stage):
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    known = set()
    for word, rest in instructions()[stage]:
        for name in re.findall(r"\$\{?(\w+)", rest):
            assert name in known, (name, rest)
        if word in ("ARG", "ENV"):
            known |= set(re.findall(r"(\w+)=", rest))
        if word == "COPY":
            *sources, _ = [path for path in rest.split() if not path.startswith("--")]
            for path in sources:
                assert (PROJECT / path).exists() and f"!{path}" in ignored, path
        if word == "RUN":
            for command in rest.split(" && "):
                program, *words = shlex.split(command.partition(" > ")[0])
                assert program in ("python", "useradd", "install") and shutil.which(program)
                if words[0] == "-m":
                    assert words[1:3] == ["pip", "install"]
                elif program == "python":
                    assert words[0] == "requirements.py"


@pytest.mark.parametrize(
    ("stage", "program", "extra"),
    [
        ("client", '["murmur", "device"]', "device"),
        ("server", '["flower-superlink"]', "simulation"),
    ],
)
def test_an_image_installs_dependencies_before_sources_as_nobody_special(stage, program, extra):
    steps = instructions()[stage]
    assert steps[-2:] == [("USER", "10001:10001"), ("ENTRYPOINT", program)]
    installs = [rest for word, rest in steps if word == "RUN" and "pip install" in rest]
    first_source = steps.index(("COPY", "conf conf"))
    after = [rest for word, rest in steps[first_source:] if word == "RUN"]
    # What follows the sources fetches nothing: neither dependencies nor what builds them.
    assert len(after) == 1 and "--no-deps --no-build-isolation" in after[0]
    assert all("--constraint constraints.txt" in rest for rest in installs[:-1])
    done = subprocess.run(
        [sys.executable, DEPLOY / "requirements.py", extra],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    told = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    wanted = [
        *told["build-system"]["requires"],
        *told["project"]["dependencies"],
        *told["project"]["optional-dependencies"][extra],
    ]
    assert done.stdout.splitlines() == wanted
    assert ("RUN", f"python requirements.py {extra} > requirements.txt") in steps
    (torch,) = (rest for rest in installs if rest.endswith("torch torchvision"))
    assert installs[0] == torch and "--index-url ${TORCH_INDEX}" in torch
    assert ("ARG", "TORCH_INDEX=https://download.pytorch.org/whl/cpu") in steps


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


def test_the_example_policy_is_valid():
    assert Policy.load(DEPLOY / "policy.example.yaml").defect is None

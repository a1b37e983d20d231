"""`--system gvirtus`, with a stand-in that has an installation's layout and forwards nothing."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.experiment import conduct
from testbed.experiment.execute import execute
from testbed.experiment.experiment import load_experiment
from testbed.experiment.plan import make_plan
from testbed.experiment.subject import _check_gvirtus, prepare_subjects
from testbed.experiment.systems import check_placement, system
from testbed.machine.gvirtus import (
    CONFIG_NAME,
    find_gvirtus,
    gvirtus_backend,
    has_client,
    is_listening,
)

# It takes connections as its configuration says, and writes down how it was started.
BACKEND = f"""\
#!{sys.executable}
import json, os, socket, sys
endpoint = json.load(open(sys.argv[1]))["communicator"][0]["endpoint"]
names = ("GVIRTUS_HOME", "GVIRTUS_LOGLEVEL", "LD_LIBRARY_PATH")
with open(os.environ["GVIRTUS_HOME"] + "/started", "a") as file:
    print(json.dumps({{name: os.environ[name] for name in names}}), file=file)
with socket.create_server((endpoint["server_address"], int(endpoint["port"]))) as server:
    while True:
        server.accept()
"""
CONFIG = {
    "communicator": [
        {
            "endpoint": {
                "suite": "tcp/ip",
                "protocol": "tcp",
                "server_address": "10.0.0.1",
                "port": "9999",
            },
            "plugins": ["cudart", "cublas"],
        }
    ],
    "secure_application": False,
}
EXPERIMENT = """\
name: with-gvirtus
doc: A part that GVirtuS cannot run.
seed: 1
baseline: native
systems: [native, gvirtus]
parts:
  - form: {form}
    workloads: [{workload}]
    placements: [process, guest]
    rounds: 2
    instrument: breakdown
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "gvirtus"
    for name in ("bin", "etc", "lib/frontend"):
        (folder / name).mkdir(parents=True)
    (folder / "bin" / "gvirtus-backend").write_text(BACKEND)
    (folder / "bin" / "gvirtus-backend").chmod(0o755)
    (folder / "etc" / "properties.json").write_text(json.dumps(CONFIG))
    (folder / "lib" / "frontend" / "libcudart.so.12").touch()
    monkeypatch.setenv("GVIRTUS_HOME", str(folder))
    return folder


def test_a_program_is_led_to_the_front_end(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = (
        "import json, os, socket\n"
        "config = json.load(open(os.environ['GVIRTUS_CONFIG']))\n"
        "point = config['communicator'][0]['endpoint']\n"
        "socket.create_connection((point['server_address'], int(point['port'])))\n"
        "print(json.dumps([config, dict(os.environ), os.listdir(os.environ['OCL_ICD_VENDORS'])]))\n"
    )
    assert execute([sys.executable, "-c", code], "gvirtus", "process", timeout_s=60) == 0
    config, environment, opencl = json.loads(capfd.readouterr().out)
    # The installation keeps its own file; ours has the plugins, and an endpoint on this machine.
    assert json.loads((home / "etc" / "properties.json").read_text()) == CONFIG
    assert config["communicator"][0]["plugins"] == ["cudart", "cublas"]
    assert config["communicator"][0]["endpoint"]["server_address"] == "127.0.0.1"
    assert environment["LD_LIBRARY_PATH"].startswith(f"{home}/lib/frontend:{home}/lib")
    assert environment["GVIRTUS_LOGLEVEL"] == "60000"
    assert opencl == []
    (started,) = map(json.loads, (home / "started").read_text().splitlines())
    assert started["GVIRTUS_LOGLEVEL"] == "60000"
    assert f"{home}/lib/frontend" not in started["LD_LIBRARY_PATH"]


def test_each_phase_has_a_backend_of_its_own(home: Path, tmp_path: Path) -> None:
    install = find_gvirtus()
    ports = []
    for number in range(2):
        with gvirtus_backend(install, tmp_path / str(number)) as backend:
            backend.cpu_seconds()
            config = json.loads((tmp_path / str(number) / CONFIG_NAME).read_text())
            ports.append(int(config["communicator"][0]["endpoint"]["port"]))
        with pytest.raises(TestbedError, match="backend ended"):
            backend.check_alive()
    table = Path("/proc/net/tcp").read_text()
    assert not any(is_listening(port, table) for port in ports)
    assert len((home / "started").read_text().splitlines()) == 2
    assert install.facts()["cuda"] == ["12"]
    assert install.facts()["plugins"] == ["cudart", "cublas"]


def test_a_program_that_was_not_forwarded_is_an_error(home: Path) -> None:
    """Its speed would be native's, under another name."""
    with pytest.raises(TestbedError, match="never connected to GVirtuS's backend"):
        execute(["true"], "gvirtus", "process", timeout_s=60)


def test_a_backend_that_dies_says_why(home: Path, tmp_path: Path) -> None:
    (home / "bin" / "gvirtus-backend").write_text("#!/bin/sh\necho no device >&2\nexit 3\n")
    with (
        pytest.raises(TestbedError, match="ended with status 3: no device"),
        gvirtus_backend(find_gvirtus(), tmp_path / "run"),
    ):
        pass


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("bin/gvirtus-backend", "gvirtus-backend is no program"),
        ("lib/frontend/libcudart.so.12", "has no libcudart.so.N"),
        ("etc/properties.json", r"properties\.json cannot be used"),
    ],
)
def test_an_incomplete_installation_is_said(home: Path, lost: str, said: str) -> None:
    (home / lost).unlink()
    with pytest.raises(TestbedError, match=said):
        find_gvirtus()


def test_no_installation_is_said(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match=r"there is no GVirtuS here.*set GVIRTUS_HOME"):
        find_gvirtus({"GVIRTUS_HOME": str(tmp_path / "none")})


COMMAND = """\
name: asks-for
doc: A program that says what it asks for.
command: {{argv: [python3, program.py], api: {api}}}
steps: 2
"""


def test_programs_of_cuda_alone_are_forwarded(tmp_path: Path) -> None:
    path = tmp_path / "with-gvirtus.yaml"
    path.write_text(EXPERIMENT.format(form="application", workload=tmp_path / "asks-for.yaml"))
    ours = [t for t in make_plan(load_experiment(path), "kvm") if t.system.is_gvirtus]
    (tmp_path / "asks-for.yaml").write_text(COMMAND.format(api="opencl"))
    with pytest.raises(TestbedError, match=r"asks-for \(application\) uses OpenCL"):
        prepare_subjects(ours, lambda bundle: pytest.fail("recorded"), print)
    (tmp_path / "asks-for.yaml").write_text(COMMAND.format(api="cuda"))
    _check_gvirtus(ours[0])


@pytest.mark.parametrize(
    ("form", "workload"), [("application", "lenet-digits"), ("replay", "neuron-layer")]
)
def test_what_uses_opencl_is_refused(tmp_path: Path, form: str, workload: str) -> None:
    path = tmp_path / "with-gvirtus.yaml"
    path.write_text(EXPERIMENT.format(form=form, workload=workload))
    trials = make_plan(load_experiment(path), "kvm")
    ours = [trial for trial in trials if trial.system.is_gvirtus]
    # No guest, and nothing to instrument.
    assert {(trial.placement, trial.instrument) for trial in ours} == {("process", "")}
    with pytest.raises(TestbedError, match=f"gvirtus forwards CUDA, and {workload}"):
        prepare_subjects(ours, lambda bundle: pytest.fail("prepared"), print)


def test_an_experiment_goes_on_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "with-gvirtus.yaml"
    path.write_text(EXPERIMENT.format(form="application", workload="lenet-digits"))
    monkeypatch.setenv("GVIRTUS_HOME", str(tmp_path / "none"))
    plan = conduct.dry_run(conduct.Request(str(path)))
    assert "native" in plan
    assert "gvirtus" not in plan.replace("with-gvirtus", "")
    experiment = load_experiment(path)
    assert [system.name for system in experiment.without({"gvirtus"}).systems] == ["native"]
    (part,) = experiment.without({"gvirtus"}).parts
    assert [system.name for system in part.systems] == ["native"]
    with pytest.raises(TestbedError, match="compares with native"):
        experiment.without({"native"})


def test_it_has_no_switches_and_no_guest() -> None:
    chosen = system("gvirtus")
    assert chosen.switches() == {}
    with pytest.raises(TestbedError, match="gvirtus has no switches"):
        system("gvirtus", [("oneway", False)])
    with pytest.raises(TestbedError, match="gvirtus runs on the host"):
        check_placement("guest", chosen)
    with pytest.raises(TestbedError, match="gvirtus forwards CUDA"):
        replace(chosen, name="x").environment("tcp:127.0.0.1:1")


def test_a_listening_port_is_seen_in_the_kernels_table() -> None:
    line = "   0: 0100007F:1F90 00000000:0000 {} 00000000:00000000 00:00000000 00000000 0 0 1\n"
    assert is_listening(8080, "head\n" + line.format("0A"))
    assert not is_listening(8080, "head\n" + line.format("01"))
    assert not is_listening(80, "head\n" + line.format("0A"))
    client = line.replace(" 00000000:0000 ", " 0100007F:270F ")
    served = line.replace("1F90", "270F").replace(" 00000000:0000 ", " 0100007F:9C40 ")
    assert has_client(9999, served.format("06"))
    for state, made in (("01", True), ("06", True), ("02", False), ("0A", False)):
        assert has_client(9999, client.format(state)) is made
    assert not has_client(9998, client.format("01"))

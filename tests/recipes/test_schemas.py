"""The files of the recipes are valid for the systems that read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

RECIPES = Path(__file__).resolve().parents[2] / "examples/recipes"
RELEASES = ["1.30", "1.37"]


def load(name: str) -> Any:  # noqa: ANN401 - what a YAML file holds
    return yaml.safe_load((RECIPES / name).read_text())


@pytest.mark.parametrize("release", RELEASES)
def test_kubernetes_accepts_every_object(release: str) -> None:
    objects = list(yaml.safe_load_all((RECIPES / "kubernetes.yaml").read_text()))
    kinds = [each["kind"] for each in objects]
    assert kinds == ["Service", "Deployment", "Job", "NetworkPolicy"]
    for each in objects:
        kubernetes_validate.validate(each, release, strict=True)
    wrong = {**objects[2], "spec": {**objects[2]["spec"], "completion": 2}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, release, strict=True)


def test_the_ports_of_kubernetes_fit_together() -> None:
    path = RECIPES / "kubernetes.yaml"
    service, deployment, job, policy = yaml.safe_load_all(path.read_text())
    pod = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    worker = job["spec"]["template"]["spec"]["containers"][0]["command"][2]
    name, port = service["metadata"]["name"], service["spec"]["ports"][0]["port"]
    assert f"--coordinator {name}:{port} " in worker
    allowed = policy["spec"]["ingress"][0]["ports"]
    assert [each["port"] for each in allowed] == [port, 29471, 29600]
    assert "--port 29471 --tensor-port 29600-29601 " in worker
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2


def test_skypilot_accepts_its_file() -> None:
    sky = pytest.importorskip("sky")
    secret = [("RINGLEADER_PHRASE", "nine words")]
    config = load("skypilot.yaml")
    task = sky.Task.from_yaml_config(config, secrets_overrides=secret)
    assert task.num_nodes == 2
    with pytest.raises(ValueError, match="num_node"):
        sky.Task.from_yaml_config({**config, "num_node": 2}, secrets_overrides=secret)


def test_dstack_accepts_its_file() -> None:
    models = pytest.importorskip("dstack._internal.core.models.configurations")
    task = models.parse_run_configuration(load("dstack.yml"))
    assert task.nodes == 2
    with pytest.raises(Exception, match="nodez"):
        models.parse_run_configuration({**load("dstack.yml"), "nodez": 2})


def test_compose_is_yaml_with_services_and_a_secret() -> None:
    compose = load("compose.yaml")
    assert set(compose["services"]) == {"coordinator", "worker"}
    for service in compose["services"].values():
        assert service["secrets"] == list(compose["secrets"])

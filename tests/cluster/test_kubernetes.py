"""The manifests of docs/examples/kubernetes: their schemas, and their pods as processes in namespaces."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pods
import pytest
from faults import PATIENCE, eventually

MANIFESTS = Path(__file__).resolve().parents[2] / "docs/examples/kubernetes"
SMALL = ("--num-cpus", "1", "--object-store-memory", "32MB", "--config", "node_lease=3")
FILES = sorted(path.relative_to(MANIFESTS).as_posix() for path in MANIFESTS.rglob("*.yaml") if path.name != "kustomization.yaml")
VERSIONS = ("1.28", None)
"""The oldest release that is supported, and the newest that has schemas."""

TASK = """
import time
import zfabric as zf

@zf.remote(max_retries=0)
def lasts():
    yield "runs"
    time.sleep(1)
    yield 5

zf.init()
for ref in lasts.remote():
    print(zf.get(ref), flush=True)
"""
"""A task that says when it has begun, and then takes a second."""
PROGRAM = """
import socket, sys
import zfabric as zf
from zfabric.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

host = zf.remote(socket.gethostname)
hosts = zf.get([host.options(scheduling_strategy=On(row["NodeID"], soft=False)).remote() for row in zf.nodes()])
print(*sorted(hosts), flush=True)
sys.exit(3)
"""


def of_kind(file: str, kind: str) -> dict[str, Any]:
    """The document of a kind in a manifest."""
    (found,) = [each for each in pods.read(MANIFESTS / file) if each["kind"] == kind]
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", FILES)
def test_a_manifest_has_no_unknown_field(file: str, version: str | None) -> None:
    import kubernetes_validate

    version = version or kubernetes_validate.latest_version()
    for document in pods.read(MANIFESTS / file):
        kubernetes_validate.validate(document, version, strict=True)
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate({**document, "spec": {**document["spec"], "replcas": 1}}, version, strict=True)


@pytest.mark.parametrize("base", [MANIFESTS, MANIFESTS / "batch"])
def test_a_base_names_what_its_manifests_use(base: Path) -> None:
    (base_of,) = pods.read(base / "kustomization.yaml")
    documents = [document for file in base_of["resources"] for document in pods.read(base / file)]
    secrets = {secret["name"] for secret in base_of["secretGenerator"]}
    (image,) = base_of["images"]
    services = {document["metadata"]["name"] for document in documents if document["kind"] == "Service"}
    for document in documents:
        if document["kind"] not in ("StatefulSet", "Job"):
            continue
        template = document["spec"]["template"]
        spec = template["spec"]
        (container,) = spec["containers"]
        assert container["image"] == image["name"]
        assert {volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume} <= secrets
        claims = {claim["metadata"]["name"] for claim in document["spec"].get("volumeClaimTemplates", ())}
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]} | claims
        assert document["spec"].get("serviceName", spec.get("subdomain")) in services
        labels = template["metadata"]["labels"]
        selectors = [each["spec"].get("selector") for each in documents if each["metadata"]["name"] == document["metadata"]["name"]]
        assert all(selector.get("matchLabels", selector).items() <= labels.items() for selector in selectors if selector)
    # Files of keys are made beside the base, and never committed.
    assert (base / "keys/.gitignore").read_text().splitlines()[-2:] == ["*", "!.gitignore"]


@pytest.fixture
def machine() -> Iterator[pods.Machine]:
    if why_not := pods.why_not():
        pytest.skip(f"NO PODS CAN BE MADE HERE, SO THE MANIFESTS DO NOT RUN: {why_not}")
    with tempfile.TemporaryDirectory(prefix="zf-", dir="/tmp") as directory, pods.Machine(Path(directory)) as made:
        yield made


def test_nodes_wait_for_their_head_come_back_and_are_drained(machine: pods.Machine) -> None:
    keys = machine.keys()
    head_set, node_set = of_kind("head.yaml", "StatefulSet"), of_kind("nodes.yaml", "StatefulSet")
    group = head_set["spec"]["template"]["spec"]["securityContext"]["fsGroup"]
    both, one = machine.secret("both", group, **keys), machine.secret("one", group, **{pods.KEY: keys[pods.KEY]})
    node = pods.Pod(machine, "zfabric-node-0", "zfabric-node", node_set["spec"]["template"], {"keys": one})
    head = pods.Pod(machine, "zfabric-head-0", "zfabric-head", head_set["spec"]["template"], {"keys": both})

    node.start(*SMALL)  # Before its head.
    head.start(*SMALL[2:])
    eventually(head.listens, "the head's probe")
    eventually(node.listens, "the node's probe")

    def nodes() -> Any:
        code, output, errors = head.run("zfabric", "nodes", "--json")
        return len(json.loads(output)) if code == 0 else errors

    eventually(lambda: nodes() == 2, "both nodes")
    program = "import zfabric as zf, socket; zf.init(); print(zf.get(zf.remote(socket.gethostname).remote()))"
    assert head.run("python", "-c", program)[:2] == (0, "zfabric-node-0\n")

    head.kill()
    assert head.end()[0] != 0
    code, errors = node.end()  # It could not renew its lease.
    assert code == 1, errors
    # As a kubelet does: the same volumes and addresses. Pids begin at 1 again, those of the former session included.
    head.start(*SMALL[2:])
    node.start(*SMALL)
    eventually(lambda: head.listens() and nodes() == 2, "both nodes again")

    # A pod's deletion: what runs there ends first.
    running = head.begin("python", "-c", TASK)
    assert running.stdout is not None
    assert running.stdout.readline() == "runs\n"
    node.terminate()
    assert running.communicate(timeout=PATIENCE)[0] == "5\n"
    code, errors = node.end()
    assert (code, errors.splitlines()[-1]) == (0, "drained"), errors
    head.terminate()
    code, errors = head.end()
    assert code == 0, errors


def test_a_job_runs_its_program_on_all_pods_and_ends_as_that_does(machine: pods.Machine) -> None:
    job = of_kind("batch/job.yaml", "Job")
    template = job["spec"]["template"]
    keys = machine.secret("keys", template["spec"]["securityContext"]["fsGroup"], **machine.keys())
    # As Kubernetes does for an Indexed Job; of its four pods, two.
    indices = [{"JOB_COMPLETION_INDEX": str(index), "ZFABRIC_SIZE": "2"} for index in range(2)]
    volumes = {"keys": keys}
    made = [pods.Pod(machine, f"zfabric-run-{index}", "zfabric-run", template, volumes, **indices[index]) for index in range(2)]
    (machine.program / "train.py").write_text(PROGRAM)
    for pod in made:
        pod.start(*SMALL)
    assert (job["spec"]["completionMode"], made[0].environment()["ZFABRIC_SIZE"]) == ("Indexed", "2")
    code, output, errors = made[0].result()
    assert (code, output) == (3, "zfabric-run-0 zfabric-run-1\n"), errors
    assert made[1].result()[0] == 0

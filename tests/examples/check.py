"""Parts of tests/examples/run.sh: check.py COMMAND ARGUMENTS…"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

import hcl2
import jsonschema
import yaml

DAEMONSET = "cloud-init/daemonset/daemonset.yaml"
REPOSITORY = "registry.example.com/tools/gpu-bootstrap"


def old_packer(path):
    """Removes blocks that the old Packer does not support, after their syntax was checked."""
    path = pathlib.Path(path)
    text = path.read_text(encoding="utf-8")
    hcl2.loads(text)
    text, plugins = re.subn(r"^packer \{\n.*?^\}\n", "", text, flags=re.DOTALL | re.MULTILINE)
    text, checks = re.subn(r"^  validation \{\n.*?^  \}\n", "", text, flags=re.DOTALL | re.MULTILINE)
    assert (plugins, checks) == (1, 2), (plugins, checks)
    path.write_text(text, encoding="utf-8")


def nomad(path):
    job = json.dumps(hcl2.loads(pathlib.Path(path).read_text(encoding="utf-8")))
    for needed in ("job", "group", "task", "driver", "device", "nvidia/gpu"):
        assert needed in job, needed


def openstack(path, module):
    """Checks the arguments of a resource in the documentation of its provider, which is not installed."""
    (resource,) = hcl2.loads(pathlib.Path(path).read_text(encoding="utf-8"))["resource"]
    ((kind, named),) = ((name.strip('"'), one) for name, one in resource.items() if not name.startswith("__"))
    page = module_directory(module) / f"docs/resources/{kind.removeprefix('openstack_')}.md"
    documented = set(re.findall(r"^\* `([a-z_0-9]+)` - \((?:Optional|Required)", page.read_text(encoding="utf-8"), re.MULTILINE))
    (arguments,) = (one for name, one in named.items() if not name.startswith("__"))
    arguments = {name: value for name, value in arguments.items() if not name.startswith("__")}
    blocks = [value[0] for value in arguments.values() if isinstance(value, list) and isinstance(value[0], dict)]
    used = {name for one in [arguments, *blocks] for name in one if not name.startswith("__")}
    assert {"user_data", "network"} <= used <= documented, used - documented


def compose(path, module):
    """Validates a file with the schema of Docker Compose, which must reject an unknown key."""
    schema = json.loads((module_directory(module) / "schema/compose-spec.json").read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(schema)(schema)
    document = yaml.safe_load(pathlib.Path(path).read_text(encoding="utf-8"))
    validator.validate(document)
    for service in document["services"].values():
        for device in service["deploy"]["resources"]["reservations"]["devices"]:
            assert device.pop("capabilities") == ["gpu"], device
            device["capability"] = ["gpu"]
    assert not validator.is_valid(document)


def module_directory(path):
    """The directory of a Go module, from the output of `go mod download -json`."""
    return pathlib.Path(json.loads(pathlib.Path(path).read_text(encoding="utf-8"))["Dir"])


class Schema:
    """The API schema of Kubernetes, as JSON schemas that reject unknown fields."""

    def __init__(self, module):
        swagger = json.loads((module_directory(module) / "api/openapi-spec/swagger.json").read_text(encoding="utf-8"))
        self.definitions = {name: self.strict(one) for name, one in swagger["definitions"].items()}
        self.kinds = {}
        for name, one in swagger["definitions"].items():
            for kind in one.get("x-kubernetes-group-version-kind", []):
                group = f"{kind['group']}/" if kind["group"] else ""
                self.kinds[f"{group}{kind['version']}", kind["kind"]] = name
        quantity = "io.k8s.apimachinery.pkg.api.resource.Quantity"
        self.definitions[quantity] = {"type": ["string", "number"]}

    def add_custom(self, directory):
        """Adds the custom resource definitions in a directory."""
        for path in directory.glob("*.yaml"):
            spec = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]
            for version in spec["versions"]:
                one = self.strict(version["schema"]["openAPIV3Schema"])
                one["properties"]["metadata"] = {"$ref": "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}
                name = f"{spec['group']}.{version['name']}.{spec['names']['kind']}"
                self.definitions[name] = one
                self.kinds[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = name

    def strict(self, one):
        if isinstance(one, list):
            return [self.strict(part) for part in one]
        if not isinstance(one, dict):
            return one
        if one.get("format") == "int-or-string":
            return {"type": ["string", "integer"]}
        result = {key: self.strict(value) for key, value in one.items()}
        if isinstance(one.get("properties"), dict) and one.get("type") == "object":
            result["additionalProperties"] = False
        return result

    def check(self, item):
        name = self.kinds[item["apiVersion"], item["kind"]]
        schema = {"$ref": f"#/definitions/{name}", "definitions": self.definitions}
        jsonschema.Draft7Validator(schema).validate(item)

    def refuse(self, item):
        try:
            self.check(item)
        except jsonschema.ValidationError:
            return
        raise AssertionError(f"an unknown field was accepted: {item}")


def helm(path, *options):
    # Helm from `go install` reports Kubernetes 1.20, which the chart rejects.
    command = ["helm", "template", "--kube-version", "1.34.0", "gpu-bootstrap", path, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def by_kind(text):
    items = [one for one in yaml.safe_load_all(text) if one]
    result = {one["kind"]: one for one in items}
    assert len(items) == len(result), [one["kind"] for one in items]
    return result


def chart(path, digest, module):
    # With the default values, the chart has the objects of the manifest.
    image = f"image.repository={REPOSITORY}"
    same = ["--namespace", "gpu-bootstrap", "--set", "createNamespace=true"]
    manifest = pathlib.Path(DAEMONSET).read_text(encoding="utf-8")
    manifest = manifest.replace("@REGISTRY@/gpu-bootstrap@sha256:@DIGEST@", f"{REPOSITORY}@{digest}")
    assert "@" not in manifest.replace(f"@{digest}", "").split("\napiVersion", 1)[1]
    expected = by_kind(manifest)
    default = helm(path, "--set", image, *same)
    assert default.returncode == 0, default.stderr
    assert by_kind(default.stdout) == expected, default.stdout

    schema = Schema(module)
    for one in expected.values():
        schema.check(one)
    # The check rejects unknown fields.
    wrong = json.loads(json.dumps(expected["DaemonSet"]))
    wrong["spec"]["template"]["spec"]["unknown"] = True
    schema.refuse(wrong)

    # Other values, in another namespace.
    settings = '[cluster]\njoin = "managed"\nkubeconfig-file = "/etc/gpu-bootstrap/cluster.kubeconfig"\n'
    values = {
        "image": {"repository": "registry.example.com:5000/gpu-bootstrap"},
        "imagePullSecrets": [{"name": "registry"}],
        "settings": settings,
        "nodeSelector": {"cloud.google.com/gke-nodepool": "gpu"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "resources": {"limits": {"memory": "1Gi"}},
        "podAnnotations": {"example.com/owner": "team"},
        "maxUnavailable": "25%",
    }
    file = pathlib.Path(path).with_name("values.json")
    file.write_text(json.dumps(values), encoding="utf-8")
    other = helm(path, "--namespace", "gpu", "--values", str(file))
    assert other.returncode == 0, other.stderr
    items = by_kind(other.stdout)
    assert set(items) == set(expected) - {"Namespace"}
    for one in items.values():
        schema.check(one)
        assert one["metadata"].get("namespace", "gpu") == "gpu", one
    assert items["ClusterRoleBinding"]["subjects"][0]["namespace"] == "gpu"
    policy = json.dumps(items["ValidatingAdmissionPolicy"])
    assert "system:serviceaccount:gpu:gpu-bootstrap" in policy and "serviceaccount:gpu-bootstrap:" not in policy
    assert items["ConfigMap"]["data"] == {"50-daemonset.toml": settings}
    daemonset = items["DaemonSet"]["spec"]
    assert daemonset["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == "25%"
    pod = daemonset["template"]["spec"]
    for name in ("imagePullSecrets", "nodeSelector", "tolerations"):
        assert pod[name] == values[name], name
    assert pod["containers"][0]["image"] == f"{values['image']['repository']}@{digest}"
    assert pod["containers"][0]["resources"] == values["resources"]
    annotations = daemonset["template"]["metadata"]["annotations"]
    assert set(annotations) == {"example.com/owner", "checksum/settings"}, annotations

    for wrong, message in [
        ([], "image.repository"),
        (["--set", "image.repository=Registry.example.com/a:latest"], "image.repository"),
        (["--set", image, "--set", "image.digest=latest"], "image.digest"),
        (["--set", image, "--set", "settings=gpu"], "settings"),
        (["--set", image, "--set", "nodeSelectors.pool=gpu"], "nodeSelectors"),
        (["--set", image, "--set", "maxUnavailable=0"], "maxUnavailable"),
    ]:
        refused = helm(path, *wrong)
        assert refused.returncode != 0, wrong
        # Helm before 3.18 writes `image.repository`, newer versions `/image/repository`.
        assert message.split(".")[-1] in refused.stderr, refused.stderr


# The settings for each way to offer and share GPUs, and a kind or a resource that only their files contain.
SHARING = {
    "": "nvidia.com/gpu: 8",
    'sharing = { method = "time-slicing", replicas = 4, rename = true }': "nvidia.com/gpu.shared",
    'sharing = { method = "mps", replicas = 4 }': "nvidia-mps-control-daemon",
    'cluster.mig-strategy = "single"\nmig.layout = "all-1g.10gb"': "migStrategy: single",
    'cluster.mig-strategy = "mixed"\nmig.layout = "all-balanced"': "nvidia.com/mig-1g.10gb",
    'cluster.gpu-allocation = "dra"': "gpu.nvidia.com.deviceclass.resource.k8s.io/devices",
}


def manifests(program, kubernetes, kueue, volcano):
    schema = Schema(kubernetes)
    schema.add_custom(module_directory(kueue) / "config/components/crd/bases")
    schema.add_custom(module_directory(volcano) / "config/crd/volcano/bases")
    for settings, contained in SHARING.items():
        with tempfile.TemporaryDirectory() as directory:
            directory = pathlib.Path(directory)
            (directory / "settings.toml").write_text(f'cluster.join = "managed"\n{settings}\n', encoding="utf-8")
            command = [program, "manifests", "--out", "out", "--config", "settings.toml"]
            command += ["--os", "ubuntu-24.04", "--gpu", "p5.48xlarge"]
            written = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
            assert written.returncode == 0, written.stderr
            texts = [path.read_text(encoding="utf-8") for path in sorted((directory / "out").rglob("*.yaml"))]
        assert any(contained in text for text in texts), settings
        items = [one for text in texts for one in yaml.safe_load_all(text)]
        for one in items:
            schema.check(one)
            # An unknown field of the object, and of its specification.
            schema.refuse(one | {"unknown": True})
            if "spec" in one:
                schema.refuse(one | {"spec": one["spec"] | {"unknown": True}})
        assert {one["kind"] for one in items} > {"DaemonSet", "ResourceQuota", "ClusterQueue", "Queue", "Pod"}, settings
        print(f"{len(items)} objects are valid: {' '.join(settings.split()) or 'default'}")


COMMANDS = {
    "old-packer": old_packer,
    "nomad": nomad,
    "openstack": openstack,
    "compose": compose,
    "chart": chart,
    "manifests": manifests,
}
COMMANDS[sys.argv[1]](*sys.argv[2:])

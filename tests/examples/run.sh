#!/bin/sh
# Tests the files in examples/, the manifests and the workflows with the programs that read them: tests/examples/run.sh [PROGRAM].
# Without PROGRAM, compiles gpu-bootstrap. tests/release-files tests the packages, the container image and the Helm chart.
#
# ansible-lint and ansible-playbook read the role (the machine case `ansible` runs it), OpenTofu the Terraform module and its
# tests, Packer the template, slurmd its configuration, ShellCheck the scripts, and actionlint and zizmor the workflows. The Compose
# file is validated with the schema of Docker Compose. The dashboard is validated with the schema of Grafana; tests/readers tests its
# queries and the alert rules in Prometheus. `cargo test` validates all TOML files. The objects of `gpu-bootstrap manifests` are
# validated with the API schemas of Kubernetes, Kueue and Volcano. For Nomad and OKE, only the HCL syntax is tested: no package registry has their validators. The arguments for
# OpenStack are compared with the documentation of its provider.
#
# tools.sh installs the tools and lists the requirements.
set -eu
if [ $# -gt 0 ]; then
    program=$(realpath -- "$1")
fi
cd "$(dirname "$0")/../.."
if [ $# -eq 0 ]; then
    cargo build --locked --quiet
    program=$(realpath -- "${CARGO_TARGET_DIR:-target}/debug/gpu-bootstrap")
fi
tools=$(tests/examples/tools.sh)
PATH=$tools/bin:$tools/python/bin:$tools/root/usr/bin:$tools/root/bin:$PATH
export PATH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r examples cloud-init .github "$work"
export ANSIBLE_HOME="$work/ansible" CHECKPOINT_DISABLE=1 DOCKER_CONFIG="$work/docker" PACKER_CONFIG_DIR="$work"
step() { echo "== $1"; }

step "Ansible"
(
    cd "$work/examples/ansible"
    ansible-lint --offline --strict --profile production
    ansible-playbook --syntax-check --inventory localhost, playbook.yml
)

step "Terraform"
(
    cd "$work/examples/terraform"
    tofu fmt -check -diff
    tofu init -backend=false
    tofu validate
    tofu test
)

step "Packer"
packer fmt -check -diff "$work/examples/packer"
# This version of Packer does not support `required_plugins` and evaluates `can` incorrectly.
python3 tests/examples/check.py old-packer "$work/examples/packer/gpu-node.pkr.hcl"
(
    cd "$work/examples/packer"
    packer validate -var region=us-east-1 -var source_ami=ami-0123456789abcdef0 -var url=https://files.example.com/gpu-bootstrap \
        -var sha256="$(printf '%064d' 0)" .
)

step "OpenStack and OKE"
# Neither provider can be installed. The Go module proxy only has the module of OpenStack, which contains its documentation.
tofu fmt -check -diff "$work/examples/openstack"
tofu fmt -check -diff "$work/examples/oke"
(cd / && go mod download -json github.com/terraform-provider-openstack/terraform-provider-openstack/v3@v3.4.0) >"$work/openstack.json"
python3 tests/examples/check.py openstack examples/openstack/main.tf "$work/openstack.json"
shellcheck examples/oke/user-data.sh

step "Proxmox"
shellcheck examples/proxmox/create-vm

step "Docker Compose"
(cd / && go mod download -json github.com/compose-spec/compose-go/v2@v2.16.2) >"$work/compose.json"
python3 tests/examples/check.py compose examples/docker/compose.yaml "$work/compose.json"

step "Nomad"
python3 tests/examples/check.py nomad examples/nomad/gpu.nomad.hcl

step "Slurm"
shellcheck examples/slurm/slurm-join examples/slurm/slurm-leave examples/slurm/slurm-return
plugins=$(dirname "$(find "$tools/root" -name gres_gpu.so)")
slurmd=$(find "$tools/root/usr/sbin" -name 'slurmd*' -type f)
# The lines that docs/slurm.md describes, and those that a test without a controller needs.
cat >"$work/examples/slurm/slurm.conf" <<END
ClusterName=test
SlurmctldHost=$(hostname -s)
SlurmUser=$(id -un)
AuthType=auth/none
CredType=cred/none
PluginDir=$plugins
SlurmdSpoolDir=$work
StateSaveLocation=$work
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
SelectType=select/cons_tres
GresTypes=gpu
NodeName=$(hostname -s) Gres=gpu:8
PartitionName=gpu Nodes=ALL Default=YES
END
read_by_slurm() {
    LD_LIBRARY_PATH="$plugins:$(dirname "$plugins")" "$slurmd" -f "$work/examples/slurm/slurm.conf" -G
}
read_by_slurm
# slurmd reads both files: an unknown key is an error.
for file in gres cgroup; do
    cp "$work/examples/slurm/$file.conf" "$work/saved"
    echo Unknown=1 >>"$work/examples/slurm/$file.conf"
    if read_by_slurm 2>"$work/error"; then
        echo "slurmd accepted an unknown key in $file.conf" >&2
        exit 1
    fi
    grep Unknown "$work/error"
    mv "$work/saved" "$work/examples/slurm/$file.conf"
done

step "Grafana dashboard"
(cd tests/examples/dashboard && go run . ../../../examples/monitoring/dashboard.json)

step "Manifests"
version=$(sed -n 's/^.*k8s.io\/kubernetes \(v[0-9.]*\).*/\1/p' tests/vm/kubernetes/go.mod | head -n 1)
(cd / && go mod download -json "k8s.io/kubernetes@$version") >"$work/kubernetes.json"
(cd / && go mod download -json sigs.k8s.io/kueue@v0.17.0) >"$work/kueue.json"
(cd / && go mod download -json volcano.sh/volcano@v1.15.1) >"$work/volcano.json"
python3 tests/examples/check.py manifests "$program" "$work/kubernetes.json" "$work/kueue.json" "$work/volcano.json"

step "Scripts of the tests and the release"
shellcheck --external-sources tests/vm/runner/files/*.sh tests/examples/*.sh tests/release-files/*.sh release/*.sh

step "Workflows"
actionlint -shellcheck "$(command -v shellcheck)" .github/workflows/*.yml
zizmor --offline --no-progress .github

echo "== passed"

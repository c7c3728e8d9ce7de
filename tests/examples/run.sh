#!/bin/sh
# Tests the files in examples/, the Helm chart, the manifests, the packages, the container image and the workflows with the programs
# that read them: tests/examples/run.sh [PROGRAM]. Without PROGRAM, compiles gpu-bootstrap.
#
# ansible-lint and ansible-playbook read the role (the machine case `ansible` runs it), OpenTofu the Terraform module and its
# tests, Packer the template, slurmd its configuration, ShellCheck the scripts, Helm the chart, crane the image, and actionlint
# and zizmor the workflows. The Compose file is validated with the schema of Docker Compose. The dashboard is validated with the
# schema of Grafana; tests/readers tests its queries and the alert rules in Prometheus. `cargo test` validates all TOML files.
# The objects of the chart are compared with the manifest. They and the objects of `gpu-bootstrap manifests` are validated with
# the API schema of Kubernetes and of Kueue. lintian and rpmlint check the packages. The queue of Volcano is not validated,
# because the Go module proxy does not have its module. For Nomad and OKE, only the HCL syntax is tested: no package registry
# has their validators. The arguments for OpenStack are compared with the documentation of its provider.
#
# Requires Debian or Ubuntu, Python 3.11 to 3.13 with venv, and Go 1.21 or newer. The tools are installed in target/examples, in
# fixed versions, from PyPI (requirements.txt) and as Go modules, which Go verifies with its checksum database. Packer, slurmd,
# lintian and rpmlint have the version of this distribution. If a tool cannot be installed, the test fails.
set -eu
if [ $# -gt 0 ]; then
    program=$(realpath -- "$1")
fi
cd "$(dirname "$0")/../.."
if [ $# -eq 0 ]; then
    cargo build --locked --quiet
    program=$(realpath -- "${CARGO_TARGET_DIR:-target}/debug/gpu-bootstrap")
fi
tools=target/examples
mkdir -p "$tools"
tools=$(cd "$tools" && pwd)

if ! cmp -s tests/examples/run.sh "$tools/run.sh" || ! cmp -s tests/examples/requirements.txt "$tools/requirements.txt"; then
    rm -rf "$tools"
    mkdir -p "$tools/download"
    python3 -m venv "$tools/python"
    "$tools/python/bin/pip" install --quiet --disable-pip-version-check --require-hashes --only-binary :all: \
        -r tests/examples/requirements.txt
    for module in \
        helm.sh/helm/v3/cmd/helm@v3.22.0 \
        github.com/google/go-containerregistry/cmd/crane@v0.22.1 \
        github.com/rhysd/actionlint/cmd/actionlint@v1.7.12; do
        (cd / && CGO_ENABLED=0 GOBIN="$tools/bin" go install -trimpath "$module")
    done
    # `go install` rejects a module that replaces one of its dependencies, so build it in its directory.
    opentofu=$(cd / && go mod download -json github.com/opentofu/opentofu@v1.12.6 | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    (cd "$opentofu" && CGO_ENABLED=0 go build -trimpath -o "$tools/bin/tofu" ./cmd/tofu)
    (
        cd "$tools/download"
        # Only unpack these packages, because slurmd starts when it is installed.
        required=$(apt-get -qs --no-install-recommends install lintian rpmlint cpio | sed -n 's/^Inst \([^ ]*\) .*/\1/p')
        # shellcheck disable=SC2086 # A list of packages.
        apt-get -q download packer slurmd slurm-wlm-basic-plugins libhwloc15 $required
        for package in *.deb; do
            dpkg-deb -x "$package" "$tools/root"
        done
    )
    cp tests/examples/run.sh tests/examples/requirements.txt "$tools"
fi
PATH=$tools/bin:$tools/python/bin:$tools/root/usr/bin:$tools/root/bin:$PATH
export PATH

work=$(mktemp -d)
registry=
trap '[ -z "$registry" ] || kill "$registry"; rm -rf "$work"' EXIT
cp -r examples charts cloud-init .github "$work"
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

step "Image"
mkdir "$work/amd64" "$work/arm64"
echo amd64 >"$work/amd64/gpu-bootstrap"
echo arm64 >"$work/arm64/gpu-bootstrap"
export SOURCE_DATE_EPOCH=1700000000
digest=$(python3 release/image.py 1.2.3 test "$work/image.tar" "x86_64=$work/amd64" "aarch64=$work/arm64")
mkdir "$work/image"
tar --extract --file "$work/image.tar" --directory "$work/image"
crane registry serve --address 127.0.0.1:0 >"$work/registry" 2>&1 &
registry=$!
timeout 30 sh -c "until grep -q 'serving on port' '$work/registry'; do sleep 0.1; done"
address=127.0.0.1:$(sed -n 's/.*serving on port \([0-9]*\).*/\1/p' "$work/registry")
# As in .github/workflows/image.yml.
crane push "$work/image" "$address/gpu-bootstrap:1.2.3"
[ "$(crane digest "$address/gpu-bootstrap:1.2.3")" = "$digest" ]
crane validate --remote "$address/gpu-bootstrap:1.2.3"
for architecture in amd64 arm64; do
    crane validate --remote "$address/gpu-bootstrap:1.2.3" --platform "linux/$architecture"
    crane export --platform "linux/$architecture" "$address/gpu-bootstrap:1.2.3" - | tar --extract --to-stdout opt/gpu-bootstrap |
        cmp - "$work/$architecture/gpu-bootstrap"
done

step "Chart"
release/chart.sh 1.2.3 "$digest" "$work/chart.tgz"
helm lint --strict --set image.repository=registry.example.com/gpu-bootstrap "$work/chart.tgz"
version=$(sed -n 's/^.*k8s.io\/kubernetes \(v[0-9.]*\).*/\1/p' tests/vm/kubernetes/go.mod | head -n 1)
(cd / && go mod download -json "k8s.io/kubernetes@$version") >"$work/kubernetes.json"
python3 tests/examples/check.py chart "$work/chart.tgz" "$digest" "$work/kubernetes.json"

step "Manifests"
(cd / && go mod download -json sigs.k8s.io/kueue@v0.17.0) >"$work/kueue.json"
python3 tests/examples/check.py manifests "$program" "$work/kubernetes.json" "$work/kueue.json"

step "Packages"
mkdir "$work/packages"
strip -o "$work/packages/gpu-bootstrap" "$program"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
archive=$work/packages/gpu-bootstrap-$version-linux-$(uname -m).tar.gz
release/archive.sh "$work/packages/gpu-bootstrap" "$archive"
PATH=$(release/tools.sh)/bin:$PATH PACKAGE_COMPRESSION=gzip release/package.sh "$archive"
# Runs a program of an unpacked package with its libraries.
unpacked() {
    PERL5LIB=$tools/root/usr/share/perl5$(find "$tools/root/usr/lib" -path '*/perl5/5.*' -prune -printf ':%p') \
        PYTHONPATH=$tools/root/usr/lib/python3/dist-packages \
        LD_LIBRARY_PATH=$(find "$tools/root/usr/lib" -name '*-linux-gnu' -prune -printf '%p:') "$@"
}
unpacked lintian --no-cfg --allow-root --fail-on error,warning "$work"/packages/*.deb
unpacked rpmlint --strict --config release/rpmlint.toml "$work"/packages/*.rpm

step "Scripts of the test harness"
shellcheck tests/vm/runner/files/*.sh

step "Workflows"
actionlint -shellcheck "$(command -v shellcheck)" .github/workflows/*.yml
zizmor --offline --no-progress .github

echo "== passed"

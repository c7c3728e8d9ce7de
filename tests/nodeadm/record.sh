#!/bin/sh
# Runs the real nodeadm with the EKS user data of cloud-init/ and records the results for tests/cloud_init/nodeadm.rs:
# tests/nodeadm/record.sh [WORK-DIRECTORY]. Runs on x86_64 Linux as any user who can create user namespaces, requires Go, and takes
# about ten minutes.
#
# Uses the nodeadm version of 2024-02-29, because the Go module proxy has no later one (the repository has no tags for it). It does
# not support drop-in directories (added in 2025), so the test appends the gpu-bootstrap NodeConfig to the user data as another MIME
# part. It also does not support proxies, `maxPodsExpression`, feature gates and network settings, which are not used here.
set -eu
cd "$(dirname "$0")/../.."

work=${1:-target/nodeadm}
module=github.com/awslabs/amazon-eks-ami/nodeadm
version=v0.0.0-20240229193347-cfab22a10647

mkdir -p "$work"
work=$(cd "$work" && pwd -P)
if [ ! -e "$work/source" ]; then
    # Go verifies the module with its public checksum database.
    directory=$(cd / && go mod download -json $module@$version | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    cp -r "$directory" "$work/source"
    chmod -R u+w "$work/source"
    # It contains only modules.txt, without the vendored modules.
    rm -r "$work/source/vendor"
fi
mkdir -p "$work/source/cmd/answers"
cp tests/nodeadm/answers.go "$work/source/cmd/answers/main.go"
(cd "$work/source" && CGO_ENABLED=0 GOFLAGS=-mod=mod nice go build -o "$work/answers" ./cmd/answers)

# Create the root directory. `kubelet`, whose version nodeadm queries, is the same program, and the image credential provider must
# exist.
rm -rf "$work/root"
mkdir -p "$work/root/bin" "$work/root/dev" "$work/root/etc/eks/image-credential-provider"
cp "$work/answers" "$work/root/bin/answers"
ln -s answers "$work/root/bin/kubelet"
touch "$work/root/dev/null" "$work/root/etc/eks/image-credential-provider/ecr-credential-provider"
NODEADM=$work/root NODEADM_VERSION=$version cargo test --quiet --locked --test cloud_init nodeadm

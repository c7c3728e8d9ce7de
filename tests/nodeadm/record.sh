#!/bin/sh
# Asks the real nodeadm what it makes of the user data of cloud-init/ for EKS, and keeps its answers, which
# tests/cloud_init/nodeadm.rs reads: tests/nodeadm/record.sh [FOLDER]. It runs on x86_64 Linux as any user who may make user
# namespaces, with Go, and takes some ten minutes.
#
# The module is that of 2024-02-29, because Go's proxy has no later one (the repository has no tags for it). It knows neither the
# folder of drop-ins, of 2025, so the part of this program's is one more part of the user data; nor a proxy, pods by an
# expression, feature gates and network settings, which are not used here.
set -eu
cd "$(dirname "$0")/../.."

work=${1:-target/nodeadm}
module=github.com/awslabs/amazon-eks-ami/nodeadm
version=v0.0.0-20240229193347-cfab22a10647

mkdir -p "$work"
work=$(cd "$work" && pwd -P)
if [ ! -e "$work/source" ]; then
    # Go verifies it with its public database of checksums.
    folder=$(cd / && go mod download -json $module@$version | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    cp -r "$folder" "$work/source"
    chmod -R u+w "$work/source"
    # A list of modules without the modules.
    rm -r "$work/source/vendor"
fi
mkdir -p "$work/source/cmd/answers"
cp tests/nodeadm/answers.go "$work/source/cmd/answers/main.go"
(cd "$work/source" && CGO_ENABLED=0 GOFLAGS=-mod=mod nice go build -o "$work/answers" ./cmd/answers)

# Its root folder: the kubelet whose version it asks is the same program, and its credential provider must exist.
rm -rf "$work/root"
mkdir -p "$work/root/bin" "$work/root/dev" "$work/root/etc/eks/image-credential-provider"
cp "$work/answers" "$work/root/bin/answers"
ln -s answers "$work/root/bin/kubelet"
touch "$work/root/dev/null" "$work/root/etc/eks/image-credential-provider/ecr-credential-provider"
NODEADM=$work/root NODEADM_VERSION=$version cargo test --quiet --locked --test cloud_init nodeadm

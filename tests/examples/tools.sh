#!/bin/sh
# Prints the directory of the tools of tests/examples/run.sh and tests/release-files/run.sh: target/examples, where they are
# installed if necessary, in fixed versions, from PyPI (the two requirements.txt) and as Go modules, which Go verifies with its
# checksum database. Debian packages have the version of this distribution. If a tool cannot be installed, fails.
#
# Requires Debian or Ubuntu, Python 3.11 to 3.13 with venv, and Go 1.21 or newer. The first run compiles Helm, OpenTofu, crane and
# actionlint.
set -eu
cd "$(dirname "$0")/../.."
tools=target/examples
mkdir -p "$tools"
tools=$(cd "$tools" && pwd)
definition=$(cat tests/examples/tools.sh tests/examples/requirements.txt tests/release-files/requirements.txt)
if [ "$definition" = "$(cat "$tools/definition" 2>/dev/null || true)" ]; then
    echo "$tools"
    exit 0
fi
{
    rm -rf "$tools"
    mkdir -p "$tools/download"
    python3 -m venv "$tools/python"
    pip() {
        "$tools/python/bin/pip" install --quiet --disable-pip-version-check --require-hashes --only-binary :all: "$@"
    }
    pip -r tests/examples/requirements.txt
    pip --no-deps -r tests/release-files/requirements.txt
    for module in \
        helm.sh/helm/v3/cmd/helm@v3.22.0 \
        github.com/google/go-containerregistry/cmd/crane@v0.22.1 \
        github.com/rhysd/actionlint/cmd/actionlint@v1.7.12; do
        (cd / && CGO_ENABLED=0 GOBIN="$tools/bin" go install -trimpath "$module")
    done
    # `go install` rejects a module that replaces one of its dependencies, so build it in its directory.
    opentofu=$(cd / && go mod download -json github.com/opentofu/opentofu@v1.12.6)
    opentofu=$(printf '%s\n' "$opentofu" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    (cd "$opentofu" && CGO_ENABLED=0 go build -trimpath -o "$tools/bin/tofu" ./cmd/tofu)
    (
        cd "$tools/download"
        # Only unpack these packages, because slurmd starts when it is installed.
        planned=$(apt-get -qs --no-install-recommends install lintian rpmlint cpio minisign)
        required=$(printf '%s\n' "$planned" | sed -n 's/^Inst \([^ ]*\) .*/\1/p')
        # shellcheck disable=SC2086 # A list of packages.
        apt-get -q download packer slurmd slurm-wlm-basic-plugins libhwloc15 $required
        for package in *.deb; do
            dpkg-deb -x "$package" "$tools/root"
        done
    )
} >&2
printf '%s\n' "$definition" >"$tools/definition"
echo "$tools"

#!/bin/sh
# Passes the configurations of src/runtimes/tests/arrangements.rs to real daemons and records the results in this directory:
# tests/daemons/record.sh [WORK-DIRECTORY]. Runs on x86_64 Debian as any user and takes a few minutes. containerd and Docker of
# three Debian releases are downloaded from the mirror of the host, and a newer containerd is compiled if Go is installed. No
# daemon is started: `containerd` prints its parsed configuration, and `dockerd` validates a file.
set -eu
cd "$(dirname "$0")/../.."

work=${1:-target/daemons}
suites="bookworm trixie forky"
# The first release that supports configuration version 4.
releases="2.3.7"

mkdir -p "$work/programs"
work=$(cd "$work" && pwd -P)
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -n 1)
for suite in $suites; do
    apt=$work/$suite
    [ -e "$apt/done" ] && continue
    mkdir -p "$apt/lists/partial" "$apt/archives/partial"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$apt/sources.list"
    set -- -q -o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$apt/lists" \
        -o Dir::State::status=/dev/null -o "Dir::Cache::archives=$apt/archives" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=
    apt-get "$@" update
    (cd "$apt" && apt-get "$@" download containerd docker.io)
    for package in "$apt"/*.deb; do
        dpkg-deb -x "$package" "$apt/root"
    done
    # Output: `containerd github.com/containerd/containerd 1.6.20~ds1 …` and `Docker version 26.1.5+dfsg1, build …`
    version=$("$apt/root/usr/bin/containerd" --version | cut -d ' ' -f 3 | sed 's/[~+].*//')
    cp "$apt/root/usr/bin/containerd" "$work/programs/containerd-$version"
    version=$("$apt/root/usr/sbin/dockerd" --version | cut -d ' ' -f 3 | sed 's/[+,].*//')
    cp "$apt/root/usr/sbin/dockerd" "$work/programs/dockerd-$version"
    cp "$apt/root/usr/sbin/docker-proxy" "$work/programs"
    touch "$apt/done"
done
if command -v go >/dev/null; then
    for release in $releases; do
        [ -e "$work/programs/containerd-$release" ] && continue
        # Use a separate module, because `go install` rejects a go.mod with `exclude`, which containerd 2.0 has.
        mkdir -p "$work/module-$release"
        (
            cd "$work/module-$release"
            [ -e go.mod ] || go mod init answers
            go get "github.com/containerd/containerd/v2/cmd/containerd@v$release"
            CGO_ENABLED=0 nice go build -tags "no_btrfs no_devmapper no_zfs" -o "$work/programs/containerd-$release" \
                github.com/containerd/containerd/v2/cmd/containerd
        )
    done
fi
DAEMONS=$work/programs cargo test --quiet --locked --lib runtimes::tests::arrangements

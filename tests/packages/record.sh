#!/bin/sh
# Runs the scenarios of the contract test (scenarios.toml) with real package managers instead of the fakes, and records the results
# in this directory: tests/packages/record.sh [WORK-DIRECTORY]. Runs as root on Debian, requires mmdebstrap, and takes a few minutes.
# Tests apt with dpkg and dnf with rpm from two Debian releases, in root filesystems created from the mirror of the host. Writes only
# to WORK-DIRECTORY and this directory. The mounts, processes and network of the test are in separate namespaces.
set -eu
cd "$(dirname "$0")/../.."

work=${1:-target/packages}
mkdir -p "$work"
work=$(cd "$work" && pwd -P)
mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' | grep -v -e '-security' | cut -d ' ' -f 1 | head -n 1)
for suite in bookworm trixie; do
    [ -e "$work/$suite.done" ] && continue
    rm -rf "${work:?}/$suite"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" |
        unshare --mount --propagation=private mmdebstrap --mode=root --variant=minbase --quiet --dpkgopt=force-unsafe-io \
            --include=apt-utils,createrepo-c,dnf,dnf-plugins-core,file,gnupg,rpm "$suite" "$work/$suite" -
    touch "$work/$suite.done"
done
cargo test --quiet --locked --test machine --no-run
PACKAGES=$work unshare --mount --propagation=private --net --pid --fork --kill-child --mount-proc /bin/sh -euc '
    ip link set lo up
    cargo test --quiet --locked --offline --test machine answers -- --test-threads 1'

#!/bin/sh
# Asks real package managers what the contract test asks their imitations (scenarios.toml), and keeps their answers in this
# folder: tests/packages/record.sh [FOLDER]. It runs as root on Debian with mmdebstrap, and takes some minutes: apt with dpkg and
# dnf with rpm of two releases, in root filesystems from the mirror of this machine. Nothing outside FOLDER and this folder
# changes: the test makes its repository there, and its mounts, its server and the network in which they are go with it.
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

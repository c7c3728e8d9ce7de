#!/bin/sh
# Tests the files of `make release` as users get them: tests/release-files/run.sh DIRECTORY ARCHITECTURE… The files must be from this
# commit and for exactly these architectures (x86_64, aarch64). Fails if a file is missing, or if the directory contains another one.
# Changes neither the directory nor this machine. The case `release-installer` runs install.sh on machines.
#
# minisign signs and verifies a copy with a new key. lintian and rpmlint check the packages, which must contain the files of the
# archive and of the repository. man reads the manual pages, bash the completions, and the binary the user-data templates. The SBOM is
# validated with the JSON schema of CycloneDX and compared with `cargo tree`. crane pushes the image to a local registry. Helm reads
# the chart, whose objects are compared with the manifest and validated with the API schema of Kubernetes.
#
# Requires the tools of tests/examples/tools.sh, rpm, objdump and man. For aarch64, also requires root on Debian, and mmdebstrap: the
# binary runs in QEMU user-mode emulation with the C library of Debian 12. System calls go to the kernel of this machine.
set -eu
files=$(realpath -e -- "$1")
shift
cd "$(dirname "$0")/../.."
tools=$(tests/examples/tools.sh)
PATH=$tools/bin:$tools/python/bin:$tools/root/usr/bin:$tools/root/bin:$PATH
export PATH
work=$(mktemp -d)
registry=
trap '[ -z "$registry" ] || kill "$registry"; rm -rf "$work"' EXIT
export DOCKER_CONFIG="$work/docker"
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)

step() { echo "== $1"; }
fail() {
    echo "release-files: $1" >&2
    exit 1
}
# Runs a program of an unpacked package with its libraries.
unpacked() {
    PERL5LIB=$tools/root/usr/share/perl5$(find "$tools/root/usr/lib" -path '*/perl5/5.*' -prune -printf ':%p') \
        PYTHONPATH=$tools/root/usr/lib/python3/dist-packages \
        LD_LIBRARY_PATH=$(find "$tools/root/usr/lib" -name '*-linux-gnu' -prune -printf '%p:') "$@"
}
check() { python3 tests/release-files/check.py "$@"; }
# The command that starts programs of another architecture, which Debian's QEMU emulates. Packages are only unpacked: their scripts
# do not run, and this machine is not changed.
emulator() {
    root=$(pwd)/.cache/aarch64/root
    if [ ! -x "$root/usr/bin/qemu-aarch64-static" ]; then
        # The Debian mirror of this machine. apt expands its own variables.
        # shellcheck disable=SC2016
        mirror=$(apt-get indextargets --format '$(ORIGIN) $(SITE)' 'Created-By: Packages' |
            awk '$1 == "Debian" && $2 !~ /security/ { print $2; exit }')
        [ -n "$mirror" ] || fail "the apt sources contain no mirror of Debian"
        rm -rf .cache/aarch64
        mkdir -p .cache/aarch64
        mmdebstrap --quiet --variant=extract --architectures=arm64,amd64 \
            --include=libc6,libgcc-s1,qemu-user-static:amd64 bookworm "$root.new" "$mirror" >&2
        mv "$root.new" "$root"
    fi
    echo "$root/usr/bin/qemu-aarch64-static -L $root"
}

step "List of files, build information"
check files "$files" "$version" "$@"

step "Checksums, signature, installer"
# checksums.sh writes the same files again, and signs them.
cp -r "$files" "$work/signed"
unpacked minisign -G -W -p "$work/key.pub" -s "$work/key" >/dev/null
RELEASE_KEY=$work/key unpacked release/checksums.sh "$work/signed" >/dev/null
for name in SHA256SUMS install.sh; do
    cmp "$files/$name" "$work/signed/$name"
done
# The commands of the document.
sed -n '/^sha256sum --check /p; /^minisign -V /p' docs/verify.md >"$work/verify"
[ "$(wc -l <"$work/verify")" -eq 2 ] || fail "docs/verify.md does not contain the two commands"
verify() {
    sed "s|PUBLIC-KEY|$1|" "$work/verify" >"$work/verify.sh"
    (cd "$work/signed" && unpacked sh -e "$work/verify.sh" >"$work/verified" 2>&1)
}
key=$(sed -n 2p "$work/key.pub")
verify "$key" || fail "the signature is not valid: $(cat "$work/verified")"
cp "$work/signed/SHA256SUMS" "$work/saved"
echo >>"$work/signed/SHA256SUMS"
! verify "$key" || fail "minisign accepts changed checksums"
grep -q 'Signature verification failed' "$work/verified" || fail "minisign did not verify: $(cat "$work/verified")"
mv "$work/saved" "$work/signed/SHA256SUMS"
echo >>"$work/signed/gpu-bootstrap-$version.tgz"
! verify "$key" || fail "sha256sum accepts a changed file"
if [ -e "$files/SHA256SUMS.minisig" ]; then
    # shellcheck source=release/publisher
    . release/publisher
    (cd "$files" && unpacked minisign -V -P "$PUBLIC_KEY" -m SHA256SUMS)
fi

crane registry serve --address 127.0.0.1:0 >"$work/registry" 2>&1 &
registry=$!
timeout 30 sh -c "until grep -q 'serving on port' '$work/registry'; do sleep 0.1; done"
image=127.0.0.1:$(sed -n 's/.*serving on port \([0-9]*\).*/\1/p' "$work/registry")/gpu-bootstrap:$version

step "Image"
mkdir "$work/image"
tar --extract --file "$files/gpu-bootstrap-$version-oci.tar" --directory "$work/image"
# As in .github/workflows/image.yml.
crane push "$work/image" "$image"
digest=$(sed -n 's/^Image: //p' "$files/gpu-bootstrap-$version.buildinfo")
[ "$(crane digest "$image")" = "$digest" ] || fail "the image does not have the digest of the build information, $digest"
crane validate --remote "$image"

step "Chart"
helm lint --strict --set image.repository=registry.example.com/gpu-bootstrap "$files/gpu-bootstrap-$version.tgz"
kubernetes=$(sed -n 's/^.*k8s.io\/kubernetes \(v[0-9.]*\).*/\1/p' tests/vm/kubernetes/go.mod | head -n 1)
(cd / && go mod download -json "k8s.io/kubernetes@$kubernetes") >"$work/kubernetes.json"
# The test writes its values next to the chart.
cp "$files/gpu-bootstrap-$version.tgz" "$work/chart.tgz"
python3 tests/examples/check.py chart "$work/chart.tgz" "$digest" "$work/kubernetes.json"

for architecture in "$@"; do
    name=gpu-bootstrap-$version-linux-$architecture
    case $architecture in
    # `machine` is the first byte of e_machine: EM_X86_64 or EM_AARCH64.
    x86_64) debian=amd64 machine=3e ;;
    aarch64) debian=arm64 machine=b7 ;;
    *) fail "unknown architecture $architecture" ;;
    esac
    deb=$files/gpu-bootstrap_${version}_$debian.deb
    rpm=$files/gpu-bootstrap-$version-1.$architecture.rpm
    tree=$work/$architecture
    mkdir "$tree"

    step "Binary for $architecture"
    runner=
    [ "$(od -A n -t x1 -j 18 -N 2 "$files/$name")" = " $machine 00" ] || fail "$name is not for $architecture"
    if [ "$architecture" != "$(uname -m)" ]; then
        runner=$(emulator)
    fi
    start() {
        # shellcheck disable=SC2086 # A command with arguments.
        $runner "$files/$name" "$@"
    }
    output=$(start --version)
    [ "$output" = "gpu-bootstrap $version" ] || fail "unexpected output of --version: $output"
    # In emulation, /proc and /sys belong to this machine.
    start facts --format json >"$tree/facts"
    check facts <"$tree/facts"
    output=$(start compat --gpu GH200 --cuda 12.8)
    echo "$output" | grep -q '^compatible: driver ' || fail "unexpected output of compat: $output"
    release/symbols.sh "$files/$name" 2.28

    step "Archive and packages for $architecture"
    mkdir "$tree/archive" "$tree/deb" "$tree/rpm"
    tar --extract --gzip --file "$files/$name.tar.gz" --directory "$tree/archive" --strip-components 1
    dpkg-deb --extract "$deb" "$tree/deb"
    rpm2cpio "$rpm" >"$tree/cpio"
    (cd "$tree/rpm" && cpio --extract --make-directories --quiet --no-absolute-filenames) <"$tree/cpio"
    check packages "$files" "$version" "$architecture" "$tree"
    unpacked lintian --no-cfg --allow-root --fail-on error,warning "$deb"
    unpacked rpmlint --strict --config release/rpmlint.toml "$rpm"
    for page in "$tree"/archive/docs/man/*; do
        man --warnings --encoding=UTF-8 --local-file "$page" 2>"$tree/warnings" >"$tree/page"
        [ ! -s "$tree/warnings" ] || fail "$page: $(cat "$tree/warnings")"
        grep -q gpu-bootstrap "$tree/page" || fail "$page is empty"
    done
    bash -n "$tree/archive/completions/gpu-bootstrap.bash"
    for shell in bash zsh fish; do
        start completions "$shell" | cmp - "$tree/archive/completions/gpu-bootstrap.$shell"
    done

    step "User data for $architecture"
    check user-data "$files" "$version" "$architecture" "$tree" "$runner"

    step "SBOM for $architecture"
    cargo tree --locked --package gpu-bootstrap --target "$architecture-unknown-linux-gnu" --edges normal --prefix none \
        --format '{p}|{l}' >"$tree/tree"
    check sbom "$files/$name" "$architecture" "$tree/tree"

    step "Image for $architecture"
    crane validate --remote "$image" --platform "linux/$debian"
    crane config --platform "linux/$debian" "$image" >"$tree/config.json"
    check config "$files/gpu-bootstrap-$version.buildinfo" "$tree/config.json"
    crane export --platform "linux/$debian" "$image" "$tree/image.tar"
    mkdir "$tree/image"
    tar --extract --file "$tree/image.tar" --directory "$tree/image" opt licenses
    cmp "$files/$name" "$tree/image/opt/gpu-bootstrap"
    cmp "$files/$name.cdx.json" "$tree/image/licenses/$name.cdx.json"
    for license in LICENSE-APACHE LICENSE-MIT LICENSES-OF-DEPENDENCIES; do
        cmp "$tree/archive/$license" "$tree/image/licenses/$license"
    done
done

echo "== passed"

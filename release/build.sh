#!/bin/sh
# Builds the binary for machines with glibc 2.28 or newer, and packs it: release/build.sh [ARCHITECTURE]. The archive is
# written to target/release-files. Builds are reproducible: order, times and owners are fixed, and the binary contains no paths
# of the build machine. If RELEASE_KEY is the path of an ssh-keygen private key, it signs the checksums.
set -eu
cd "$(dirname "$0")/.."

glibc=2.28
architecture=${1:-x86_64}
rust_target=$architecture-unknown-linux-gnu
out=target/release-files
tools=${RELEASE_TOOLS:-target/release-tools}

if [ -z "${RELEASE_TOOLS:-}" ]; then
    # Recreate the virtual environment if pip failed in it.
    if ! cmp -s release/requirements.txt "$tools/requirements.txt"; then
        rm -rf "$tools"
        python3 -m venv "$tools"
        "$tools/bin/pip" install --quiet --disable-pip-version-check --require-hashes \
            --only-binary :all: -r release/requirements.txt
        cp release/requirements.txt "$tools/requirements.txt"
    fi
fi
PATH=$(cd "$tools/bin" && pwd):$PATH
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
here=$(pwd -P)
cargo_home=$(cd "${CARGO_HOME:-$HOME/.cargo}" && pwd -P)
RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$cargo_home=/cargo --remap-path-prefix=$here=/source -Clink-arg=-Wl,--hash-style=gnu"
CFLAGS="${CFLAGS:-} -ffile-prefix-map=$cargo_home=/cargo"
CARGO_INCREMENTAL=0
export PATH SOURCE_DATE_EPOCH RUSTFLAGS CFLAGS CARGO_INCREMENTAL

cargo zigbuild --quiet --release --locked --bin gpu-bootstrap --target "$rust_target.$glibc"
program=${CARGO_TARGET_DIR:-target}/$rust_target/release/gpu-bootstrap
release/symbols.sh "$program" "$glibc"
# Each machine downloads the binary at its first boot. The size budget is informational and not enforced.
echo "size of $program: $(stat -c %s "$program") bytes (budget: 20000000)"

# The binary generates the completions, so a binary of another architecture needs RUNNER.
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
name=gpu-bootstrap-$version-linux-$architecture
tree=$out/$name
rm -rf "$tree" "$out"/gpu-bootstrap-*-linux-"$architecture".tar.gz
mkdir -p "$tree/completions" "$tree/docs/man"
install -m 755 "$program" "$tree/gpu-bootstrap"
for shell in bash zsh fish; do
    # shellcheck disable=SC2086 # RUNNER is empty or a command with arguments.
    ${RUNNER:-} "$tree/gpu-bootstrap" completions "$shell" >"$tree/completions/gpu-bootstrap.$shell"
done
install -m 644 docs/man/*.[15] "$tree/docs/man"
install -m 644 README.md CHANGELOG.md SECURITY.md LICENSE-APACHE LICENSE-MIT "$tree"
install -m 644 docs/*.md docs/*.json "$tree/docs"
cp -r cloud-init "$tree"
python3 release/licences.py "$rust_target" >"$tree/LICENSES-OF-DEPENDENCIES"

(
    cd "$out"
    find "$name" -type d -exec chmod 755 {} +
    find "$name" -type f ! -name gpu-bootstrap -exec chmod 644 {} +
    tar --create --sort=name --format=ustar --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner "$name" |
        gzip --no-name --best >"$name.tar.gz"
    rm -rf "$name"
)
release/checksums.sh "$out"

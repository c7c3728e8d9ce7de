#!/bin/sh
# Builds the program for machines with glibc 2.28 or newer, and packs it: release/build.sh [ARCHITECTURE]. The result is
# in target/release-files. The same commit gives the same archive: order, times and owners are fixed, and the paths of
# the build machine are not in the program. RELEASE_KEY, the file of a private key of ssh-keygen, signs the checksums.
set -eu
cd "$(dirname "$0")/.."

glibc=2.28
architecture=${1:-x86_64}
rust_target=$architecture-unknown-linux-gnu
out=target/release-files
tools=${RELEASE_TOOLS:-target/release-tools}

if [ -z "${RELEASE_TOOLS:-}" ]; then
    # A virtual environment in which pip has failed is made again.
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
# It is copied to each machine at its first boot. The budget is a number to look at, not a wall.
echo "$program has $(stat -c %s "$program") bytes; the budget is 20000000"

# The completions come from the program itself, so a program of another architecture needs RUNNER.
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
name=gpu-bootstrap-$version-linux-$architecture
tree=$out/$name
rm -rf "$tree" "$out"/gpu-bootstrap-*-linux-"$architecture".tar.gz
mkdir -p "$tree/completions" "$tree/docs/man"
install -m 755 "$program" "$tree/gpu-bootstrap"
for shell in bash zsh fish; do
    # shellcheck disable=SC2086 # RUNNER is a command with arguments, or empty.
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

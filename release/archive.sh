#!/bin/sh
# Packs a binary, shell completions, manual pages and documents as an archive: release/archive.sh PROGRAM ARCHIVE. The name of the
# archive is gpu-bootstrap-VERSION-linux-ARCHITECTURE.tar.gz. GENERATOR is the program that generates the completions, by default
# PROGRAM, and RUNNER is its emulator, if any. SOURCE_DATE_EPOCH is the time of all files. GPU_BOOTSTRAP_RELEASE_URL is the URL of
# PROGRAM in user-data templates (release/templates.sh).
set -eu
program=$(realpath -e -- "$1")
mkdir -p "$(dirname "$2")"
archive=$(realpath -m -- "$2")
cd "$(dirname "$0")/.."
: "${SOURCE_DATE_EPOCH:?}"

name=$(basename "$archive" .tar.gz)
out=$(dirname "$archive")
tree=$out/$name
rm -rf "$tree"
mkdir -p "$tree/completions" "$tree/docs/man"
install -m 755 "$program" "$tree/gpu-bootstrap"
for shell in bash zsh fish; do
    # shellcheck disable=SC2086 # RUNNER is empty or a command with arguments.
    ${RUNNER:-} "${GENERATOR:-$program}" completions "$shell" >"$tree/completions/gpu-bootstrap.$shell"
done
install -m 644 docs/man/*.[15] "$tree/docs/man"
install -m 644 README.md CHANGELOG.md SECURITY.md LICENSE-APACHE LICENSE-MIT "$tree"
install -m 644 docs/*.md docs/*.json docs/*.svg "$tree/docs"
cp -r cloud-init examples "$tree"
rm "$tree"/examples/*.rs "$tree"/cloud-init/README.md "$tree"/cloud-init/values.toml "$tree"/cloud-init/*/form.toml
release/templates.sh "$program" "$tree/cloud-init"
python3 release/dependencies.py licenses "${name##*-linux-}-unknown-linux-gnu" >"$tree/LICENSES-OF-DEPENDENCIES"
find "$tree" -type d -exec chmod 755 {} +
# As in the repository. The result must not depend on the umask.
find "$tree" -type f -perm -100 -exec chmod 755 {} +
find "$tree" -type f ! -perm -100 -exec chmod 644 {} +
tar --create --file "$out/$name.tar" --directory "$out" --sort=name --format=ustar --mtime="@$SOURCE_DATE_EPOCH" \
    --owner=0 --group=0 --numeric-owner "$name"
gzip --no-name --best <"$out/$name.tar" >"$archive"
rm -rf "$tree" "$out/$name.tar"

#!/bin/sh
# Completes the files of a release: release/checksums.sh DIRECTORY. Writes install.sh with the checksums of the archives and
# packages, and SHA256SUMS. If RELEASE_KEY is the path of a minisign secret key, signs SHA256SUMS, otherwise removes its signature.
# docs/verify.md describes how to verify the signature.
set -eu
template=$(cd "$(dirname "$0")" && pwd)/install.sh
if [ -n "${RELEASE_KEY:-}" ]; then
    RELEASE_KEY=$(realpath -e -- "$RELEASE_KEY")
fi
cd "$1"
# The order of the files does not depend on the locale.
export LC_ALL=C
# The signature of an earlier build signs other files.
rm -f install.sh SHA256SUMS SHA256SUMS.minisig
sums=$(for file in *.tar.gz *.deb *.rpm; do
    [ ! -e "$file" ] || sha256sum "$file"
done)
if [ -z "$sums" ]; then
    echo "checksums.sh: $1 contains no archive and no package" >&2
    exit 1
fi
while IFS= read -r line; do
    case $line in
    "sums='@SUMS@'") printf "sums='%s'\n" "$sums" ;;
    *) printf '%s\n' "$line" ;;
    esac
done <"$template" >install.sh
chmod 644 install.sh
sums=$(for file in *; do
    sha256sum "$file"
done)
printf '%s\n' "$sums" | tee SHA256SUMS
if [ -n "${RELEASE_KEY:-}" ]; then
    # Without a fixed comment, the signature contains the time. If the key has a password, minisign reads it from standard input.
    minisign -S -s "$RELEASE_KEY" -t 'gpu-bootstrap release' -x SHA256SUMS.minisig -m SHA256SUMS >/dev/null
    echo "signed: SHA256SUMS.minisig"
else
    echo "NOT SIGNED: RELEASE_KEY is not set" >&2
fi

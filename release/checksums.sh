#!/bin/sh
# Writes SHA256SUMS for the archives in a directory, and signs it if RELEASE_KEY is the path of an ssh-keygen private key:
# release/checksums.sh DIRECTORY. To verify the signature:
# `ssh-keygen -Y verify -f ALLOWED_SIGNERS -I NAME -n file -s SHA256SUMS.sig <SHA256SUMS`.
set -eu
if [ -n "${RELEASE_KEY:-}" ]; then
    RELEASE_KEY=$(realpath -e -- "$RELEASE_KEY")
fi
cd "$1"
sha256sum gpu-bootstrap-*.tar.gz >SHA256SUMS
# Remove the signature of an earlier build, which signs other archives.
rm -f SHA256SUMS.sig
if [ -n "${RELEASE_KEY:-}" ]; then
    ssh-keygen -q -Y sign -n file -f "$RELEASE_KEY" SHA256SUMS </dev/null
fi
cat SHA256SUMS

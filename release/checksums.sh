#!/bin/sh
# Writes SHA256SUMS of the archives in a folder, and signs it if RELEASE_KEY names a private key of ssh-keygen:
# release/checksums.sh FOLDER. The signature is compared with
# `ssh-keygen -Y verify -f ALLOWED_SIGNERS -I NAME -n file -s SHA256SUMS.sig <SHA256SUMS`.
set -eu
if [ -n "${RELEASE_KEY:-}" ]; then
    RELEASE_KEY=$(realpath -e -- "$RELEASE_KEY")
fi
cd "$1"
sha256sum gpu-bootstrap-*.tar.gz >SHA256SUMS
# One of an earlier build signs other archives.
rm -f SHA256SUMS.sig
if [ -n "${RELEASE_KEY:-}" ]; then
    ssh-keygen -q -Y sign -n file -f "$RELEASE_KEY" SHA256SUMS </dev/null
fi
cat SHA256SUMS

#!/bin/sh
# Prints the directory of the tools in release/requirements.txt: $RELEASE_TOOLS, or target/release-tools, where they are installed
# with fixed hashes if necessary.
set -eu
cd "$(dirname "$0")/.."

tools=${RELEASE_TOOLS:-target/release-tools}
if [ -z "${RELEASE_TOOLS:-}" ]; then
    # Recreate the virtual environment if pip failed in it.
    if ! cmp -s release/requirements.txt "$tools/requirements.txt"; then
        rm -rf "$tools"
        python3 -m venv "$tools"
        "$tools/bin/pip" install --quiet --disable-pip-version-check --require-hashes \
            --only-binary :all: -r release/requirements.txt >&2
        cp release/requirements.txt "$tools/requirements.txt"
    fi
fi
cd "$tools" && pwd

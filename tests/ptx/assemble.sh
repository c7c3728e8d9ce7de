#!/bin/sh
# Assembles the CUDA kernel of the probe using NVIDIA ptxas, which is downloaded from PyPI to .cache/ptxas with fixed hashes.
set -eu
cd "$(dirname "$0")/../.."
tools=.cache/ptxas
if ! cmp -s tests/ptx/requirements.txt "$tools/requirements.txt"; then
    rm -rf "$tools"
    python3 -m venv "$tools/venv"
    "$tools/venv/bin/pip" download --quiet --disable-pip-version-check --require-hashes --no-deps \
        --only-binary :all: --dest "$tools/wheels" -r tests/ptx/requirements.txt
    for wheel in "$tools"/wheels/*.whl; do
        # A wheel is a zip archive. Extract only the assembler.
        python3 - "$wheel" "$tools" <<'END'
import os, pathlib, sys, zipfile
wheel, tools = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    [name] = [name for name in archive.namelist() if name.endswith("/bin/ptxas")]
    target = pathlib.Path(tools) / "programs" / pathlib.Path(wheel).name.split("-py3-")[0]
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(archive.read(name))
    os.chmod(target, 0o755)
END
    done
    rm -r "$tools/wheels" "$tools/venv"
    cp tests/ptx/requirements.txt "$tools/requirements.txt"
fi
PTXAS_PROGRAMS=$tools/programs
export PTXAS_PROGRAMS
# Test the whole workspace, because for a single package cargo would compile shared dependencies again.
exec cargo test --quiet --locked --workspace --test ptx -- --ignored

#!/bin/sh
# Assembles the probe's kernel with NVIDIA's own `ptxas`, which comes from PyPI with fixed hashes into .cache/ptxas.
set -eu
cd "$(dirname "$0")/../.."
tools=.cache/ptxas
if ! cmp -s tests/ptx/requirements.txt "$tools/requirements.txt"; then
    rm -rf "$tools"
    python3 -m venv "$tools/venv"
    "$tools/venv/bin/pip" download --quiet --disable-pip-version-check --require-hashes --no-deps \
        --only-binary :all: --dest "$tools/wheels" -r tests/ptx/requirements.txt
    for wheel in "$tools"/wheels/*.whl; do
        # A wheel is a zip file; only the assembler is taken out of it.
        python3 - "$wheel" "$tools" <<'END'
import os, pathlib, sys, zipfile
wheel, tools = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    [name] = [name for name in archive.namelist() if name.endswith("/bin/ptxas")]
    place = pathlib.Path(tools) / "programs" / pathlib.Path(wheel).name.split("-py3-")[0]
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(archive.read(name))
    os.chmod(place, 0o755)
END
    done
    rm -r "$tools/wheels" "$tools/venv"
    cp tests/ptx/requirements.txt "$tools/requirements.txt"
fi
PTXAS_PROGRAMS=$tools/programs
export PTXAS_PROGRAMS
# With all packages, so that nothing is compiled a second time.
exec cargo test --quiet --locked --workspace --test ptx -- --ignored

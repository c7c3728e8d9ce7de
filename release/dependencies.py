"""Lists the crates linked into the binary: dependencies.py licenses TARGET >FILE writes the texts of their licenses,
dependencies.py sbom TARGET PROGRAM >FILE a software bill of materials as CycloneDX 1.5 in JSON. The SBOM has no serial number, and
its time is SOURCE_DATE_EPOCH, so that it is reproducible."""

import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

NAMES = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE")
PROGRAM = "gpu-bootstrap"


def metadata(target):
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def needed_by(node):
    """Returns the IDs of the packages that a package links, without test and build-script dependencies."""
    return [one["pkg"] for one in node["deps"] if any(kind["kind"] is None for kind in one["dep_kinds"])]


def linked(data, target):
    """Returns the program, and the packages linked into it, directly or not, in the order of their names."""
    # `cargo metadata` also enables the features that only other packages of the workspace need.
    command = ["cargo", "tree", "--locked", "--package", PROGRAM, "--target", target, "--edges", "normal", "--prefix", "none"]
    lines = subprocess.run([*command, "--format", "{p}"], check=True, capture_output=True, text=True).stdout.splitlines()
    found = {tuple(line.split(" ")[:2]) for line in lines}
    packages = [package for package in data["packages"] if (package["name"], f"v{package['version']}") in found]
    assert len(packages) == len(found), found
    [root] = [package for package in packages if package["name"] == PROGRAM]
    packages.remove(root)
    return root, sorted(packages, key=lambda one: (one["name"], one["version"]))


def licenses(target):
    _, packages = linked(metadata(target), target)
    texts = {}
    print(f"{PROGRAM} contains these crates.io packages. The texts of their licenses follow.\n")
    for package in packages:
        # The crates of this repository have its license.
        if package["source"] is None:
            continue
        files = sorted(
            path
            for path in pathlib.Path(package["manifest_path"]).parent.iterdir()
            if path.is_file() and path.name.upper().startswith(NAMES)
        )
        marks = []
        for path in files:
            text = path.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n").strip()
            mark = hashlib.sha256(" ".join(text.split()).encode()).hexdigest()
            number, _ = texts.setdefault(mark, (len(texts) + 1, text))
            marks.append(number)
        told = ", ".join(f"text {mark}" for mark in sorted(set(marks))) or "no text in the package"
        print(f"{package['name']} {package['version']}: {package['license'] or 'see its text'} ({told})")
    for number, text in texts.values():
        print(f"\n{'=' * 20} text {number} {'=' * 20}\n\n{text}")


def checksums():
    """Returns the SHA-256 of each crate archive in Cargo.lock, by name and version."""
    text = pathlib.Path("Cargo.lock").read_text(encoding="utf-8")
    entry = re.compile(r'^name = "(.*)"\nversion = "(.*)"\nsource = ".*"\nchecksum = "([0-9a-f]{64})"$', re.MULTILINE)
    return {(name, version): digest for name, version, digest in entry.findall(text)}


def reference(package):
    name = f"{package['name']}@{package['version']}"
    return name if package["source"] is None else f"pkg:cargo/{name}"


def component(package, kind, digest):
    one = {"type": kind, "bom-ref": reference(package), "name": package["name"], "version": package["version"]}
    if digest:
        one["hashes"] = [{"alg": "SHA-256", "content": digest}]
    if package["license"]:
        # Crates may use the old separator, which is not part of SPDX expressions.
        one["licenses"] = [{"expression": re.sub(r"\s*/\s*", " OR ", package["license"])}]
    if package["source"] is not None:
        one["purl"] = reference(package)
    return one


def sbom(target, program):
    data = metadata(target)
    root, packages = linked(data, target)
    digests = checksums()
    time = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    references = {package["id"]: reference(package) for package in [root, *packages]}
    program = component(root, "application", hashlib.sha256(pathlib.Path(program).read_bytes()).hexdigest())
    program["properties"] = [{"name": "rust:target", "value": target}]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": program},
        "components": [component(one, "library", digests.get((one["name"], one["version"]))) for one in packages],
        "dependencies": [
            {
                "ref": reference(package),
                "dependsOn": sorted({references[one] for one in needed_by(nodes[package["id"]]) if one in references}),
            }
            for package in [root, *packages]
        ],
    }
    json.dump(document, sys.stdout, indent=1, ensure_ascii=False)
    print()


{"licenses": licenses, "sbom": sbom}[sys.argv[1]](*sys.argv[2:])

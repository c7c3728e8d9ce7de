"""Writes the licenses of all crates linked into the binary to one text: licences.py TARGET >FILE."""

import hashlib
import json
import pathlib
import subprocess
import sys

NAMES = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE")


def metadata(target):
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def linked(data, name):
    """Returns the packages linked into a package, without test and build-script dependencies."""
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    root = next(package["id"] for package in data["packages"] if package["name"] == name)
    found, todo = set(), [root]
    while todo:
        one = todo.pop()
        if one in found:
            continue
        found.add(one)
        for needed in nodes[one]["deps"]:
            if any(kind["kind"] is None for kind in needed["dep_kinds"]):
                todo.append(needed["pkg"])
    return [package for package in data["packages"] if package["id"] in found - {root}]


def main(target):
    packages = sorted(linked(metadata(target), "gpu-bootstrap"), key=lambda one: (one["name"], one["version"]))
    texts = {}
    print("gpu-bootstrap contains these crates.io packages. The texts of their licenses follow.\n")
    for package in packages:
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


main(sys.argv[1])

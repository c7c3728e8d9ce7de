"""Writes the container image of a release as an OCI image layout in a tar file, without a container engine and without network:
image.py VERSION REVISION OUTPUT ARCHITECTURE=DIRECTORY… The directory of an architecture (x86_64 or aarch64) contains the program
`gpu-bootstrap`, and files for `/licenses`. Prints the digest of the image, which registries use. SOURCE_DATE_EPOCH is the time of
the image, and the result only depends on these inputs.

The image contains no operating system. Its links point to `/host/usr`, where the pods mount `/usr` of the node: the program runs
with the C library of the node, and the DaemonSet with its shell."""

import datetime
import hashlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile

MEDIA = "application/vnd.oci.image."
PLATFORMS = {"x86_64": "amd64", "aarch64": "arm64"}
DIRECTORIES = {"dev": 0o755, "etc": 0o755, "host": 0o755, "host/usr": 0o755, "licenses": 0o755, "opt": 0o755, "proc": 0o755,
               "sys": 0o755, "tmp": 0o1777, "usr": 0o755, "usr/lib": 0o755}
LINKS = {"bin": "host/usr/bin", "lib": "host/usr/lib", "lib64": "host/usr/lib64", "sbin": "host/usr/sbin"}


def archive(entries):
    """Returns a tar file. An entry is a path, a mode, and the content, `None` for a directory, or the target of a link."""
    result = io.BytesIO()
    with tarfile.open(fileobj=result, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path, mode, content in sorted(entries):
            info = tarfile.TarInfo(path)
            info.mode = mode
            info.mtime = int(os.environ["SOURCE_DATE_EPOCH"])
            if content is None:
                info.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
            else:
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return result.getvalue()


def layer(directory):
    entries = [(path, mode, None) for path, mode in DIRECTORIES.items()]
    entries += [(path, 0o777, target) for path, target in LINKS.items()]
    entries.append(("opt/gpu-bootstrap", 0o755, (directory / "gpu-bootstrap").read_bytes()))
    for path in directory.iterdir():
        if path.name != "gpu-bootstrap":
            entries.append((f"licenses/{path.name}", 0o644, path.read_bytes()))
    return archive(entries)


class Layout:
    def __init__(self):
        self.files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}

    def add(self, content, media):
        """Adds content, and returns its descriptor."""
        if isinstance(content, dict):
            content = json.dumps(content, separators=(",", ":")).encode()
        digest = hashlib.sha256(content).hexdigest()
        self.files[f"blobs/sha256/{digest}"] = content
        return {"mediaType": MEDIA + media, "digest": f"sha256:{digest}", "size": len(content)}

    def write(self, output):
        directories = [("blobs", 0o755, None), ("blobs/sha256", 0o755, None)]
        files = [(path, 0o644, content) for path, content in self.files.items()]
        pathlib.Path(output).write_bytes(archive(directories + files))


def main(version, revision, output, *sources):
    time = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ")
    about = {
        f"org.opencontainers.image.{name}": value
        for name, value in {
            "created": created,
            "description": "Turns a bare Linux VM with NVIDIA GPUs into a GPU node. Requires /usr of the node at /host/usr.",
            "licenses": "MIT OR Apache-2.0",
            "revision": revision,
            "title": "gpu-bootstrap",
            "version": version,
        }.items()
    }
    layout = Layout()
    manifests = []
    for source in sources:
        architecture, directory = source.split("=", 1)
        content = layer(pathlib.Path(directory))
        packed = subprocess.run(["gzip", "--no-name", "--best"], input=content, check=True, capture_output=True).stdout
        platform = {"architecture": PLATFORMS[architecture], "os": "linux"}
        config = layout.add(
            {
                "created": created,
                **platform,
                "config": {
                    "Env": ["PATH=/bin:/sbin"],
                    "Entrypoint": ["/opt/gpu-bootstrap"],
                    "Labels": about,
                },
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]},
                "history": [{"created": created, "created_by": "release/image.py"}],
            },
            "config.v1+json",
        )
        manifest = {
            "schemaVersion": 2,
            "mediaType": MEDIA + "manifest.v1+json",
            "config": config,
            "layers": [layout.add(packed, "layer.v1.tar+gzip")],
            "annotations": about,
        }
        manifests.append({**layout.add(manifest, "manifest.v1+json"), "platform": platform})
    index = {"schemaVersion": 2, "mediaType": MEDIA + "index.v1+json", "manifests": manifests, "annotations": about}
    image = layout.add(index, "index.v1+json")
    named = {**image, "annotations": {"org.opencontainers.image.ref.name": version}}
    top = {"schemaVersion": 2, "mediaType": MEDIA + "index.v1+json", "manifests": [named]}
    layout.files["index.json"] = json.dumps(top, separators=(",", ":")).encode()
    layout.write(output)
    print(image["digest"])


main(*sys.argv[1:])

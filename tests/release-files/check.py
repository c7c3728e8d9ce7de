"""Parts of tests/release-files/run.sh: check.py COMMAND ARGUMENTS…"""

import gzip
import hashlib
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import tarfile
import tomllib

import jsonschema
import referencing

DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
DOCUMENTS = "usr/share/doc/gpu-bootstrap/"
LICENSES = "usr/share/licenses/gpu-bootstrap/"


def sha256(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def same(found, expected, what):
    """Compares two dictionaries or sets."""
    assert found == expected, "\n".join(
        [f"{what}:"] + [f"  {key}" for key in sorted(set(found) ^ set(expected))]
        + [f"  {key}: {str(found[key])[:200]!r}, not {str(expected[key])[:200]!r}"
           for key in set(found) & set(expected) if isinstance(found, dict) and found[key] != expected[key]])


def information(path):
    """The lines `NAME: VALUE` of a .buildinfo file."""
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    return dict(line.split(": ", 1) for line in lines if ": " in line)


def files(directory, version, *architectures):
    directory = pathlib.Path(directory)
    general = ["install.sh", f"gpu-bootstrap-{version}-oci.tar", f"gpu-bootstrap-{version}.tgz", f"gpu-bootstrap-{version}.buildinfo"]
    expected = set(general)
    for one in architectures:
        name = f"gpu-bootstrap-{version}-linux-{one}"
        expected |= {name, f"{name}.tar.gz", f"{name}.cdx.json"}
        expected |= {f"gpu-bootstrap_{version}_{DEBIAN[one]}.deb", f"gpu-bootstrap-{version}-1.{one}.rpm"}
    found = {path.name for path in directory.iterdir()}
    same(found - {"SHA256SUMS.minisig"}, expected | {"SHA256SUMS"}, "missing or unknown files")
    lines = (directory / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    same(dict(reversed(line.split("  ")) for line in lines), {name: sha256(directory / name) for name in expected}, "SHA256SUMS")
    # The installer has the checksums of the files that it installs.
    installer = (directory / "install.sh").read_text(encoding="utf-8")
    [sums] = re.findall(r"^sums='([^']*)'$", installer, re.MULTILINE)
    same(set(sums.splitlines()), {line for line in lines if line.endswith((".tar.gz", ".deb", ".rpm"))}, "checksums of install.sh")

    info = information(directory / f"gpu-bootstrap-{version}.buildinfo")
    assert info["Version"] == version, info
    commit = output("git", "rev-parse", "HEAD").strip()
    assert info["Commit"] == commit, f"the files are from commit {info['Commit']}, not from {commit}: run `make release`"
    assert info["Source-Date-Epoch"] == output("git", "log", "-1", "--format=%ct").strip(), info


def facts():
    found = json.load(sys.stdin)
    assert found["schema"] == 1 and found["kernel"]["running"], found


def config(buildinfo, path):
    info = information(buildinfo)
    labels = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))["config"]["Labels"]
    for name, key in [("revision", "Commit"), ("version", "Version")]:
        assert labels[f"org.opencontainers.image.{name}"] == info[key], labels


def tree(root):
    """The content of each file in a directory."""
    root = pathlib.Path(root)
    assert not any(path.is_symlink() for path in root.rglob("*"))
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def as_in_archive(path):
    """The path in the archive of a file in a package. Compressed files have the suffix `.gz`."""
    for pattern, new in [
        (r"usr/bin/gpu-bootstrap", "gpu-bootstrap"),
        (r"usr/share/man/man\d/", "docs/man/"),
        (r"usr/share/bash-completion/completions/gpu-bootstrap", "completions/gpu-bootstrap.bash"),
        (r"usr/share/fish/vendor_completions.d/", "completions/"),
        (r"usr/share/zsh/(vendor-completions|site-functions)/_gpu-bootstrap", "completions/gpu-bootstrap.zsh"),
        (LICENSES, ""),
        (DOCUMENTS + "examples/cloud-init/", "cloud-init/"),
        (DOCUMENTS, ""),
    ]:
        if re.match(pattern, path):
            return re.sub(f"^{pattern}", new, path)
    return path


def package(root, archive, own, without):
    """Compares the files of an unpacked package with the archive: `own` are the additional ones."""
    found = {}
    for path, content in tree(root).items():
        if path in own:
            continue
        path = as_in_archive(path)
        if path.endswith(".gz"):
            path, content = path.removesuffix(".gz"), gzip.decompress(content)
        assert path not in found, path
        found[path] = content
    expected = {path: content for path, content in archive.items() if path not in without}
    for path in expected:
        if path.startswith("docs/") and path.endswith(".md"):
            # The directory of the templates in the packages.
            expected[path] = expected[path].replace(b"](../cloud-init", b"](../examples/cloud-init")
    same(found, expected, f"files of {root}")
    for path in own:
        assert (pathlib.Path(root) / path).stat().st_size > 0, path


def modes(members, executable, what):
    """Checks (path, mode, owner, group) of files and directories."""
    for path, mode, *owners in members:
        path = path.removeprefix("./").strip("/")
        expected = "drwxr-xr-x" if mode.startswith("d") else "-rwxr-xr-x" if path in executable else "-rw-r--r--"
        assert mode == expected, f"{what}: {path} has the mode {mode}, not {expected}"
        assert owners in ([0, 0], ["root", "root"]), f"{what}: {path} has the owner {owners}"


def listed(tar):
    """The files of an archive as (path, mode, owner, group)."""
    kinds = {tarfile.DIRTYPE: "d", tarfile.REGTYPE: "-"}
    bits = "rwxrwxrwx"
    for one in tar:
        mode = "".join(bit if one.mode >> (8 - index) & 1 else "-" for index, bit in enumerate(bits))
        assert one.mode < 0o1000, one.name
        yield one.name, kinds[one.type] + mode, one.uid, one.gid


def repository(directory):
    """The files of the repository in a directory: content, and whether a file is executable."""
    lines = output("git", "ls-files", "--stage", directory).splitlines()
    split = [re.fullmatch(r"(\d+) \S+ 0\t(.*)", line).groups() for line in lines]
    return {path: (pathlib.Path(path).read_bytes(), mode == "100755") for mode, path in split}


def packages(directory, version, architecture, unpacked):
    directory, unpacked = pathlib.Path(directory), pathlib.Path(unpacked)
    name = f"gpu-bootstrap-{version}-linux-{architecture}"
    deb = directory / f"gpu-bootstrap_{version}_{DEBIAN[architecture]}.deb"
    rpm = directory / f"gpu-bootstrap-{version}-1.{architecture}.rpm"

    archive = tree(unpacked / "archive")
    assert archive["gpu-bootstrap"] == (directory / name).read_bytes()
    units = [path for path in archive if path.endswith((".service", ".timer", ".socket"))]
    assert units == [], units
    # Each file is in the repository, except these. The content of the templates is compared later.
    generated = {"gpu-bootstrap", "LICENSES-OF-DEPENDENCIES", *(f"completions/gpu-bootstrap.{one}" for one in ("bash", "fish", "zsh"))}
    assert generated <= set(archive)
    for path in set(archive) - generated:
        content = pathlib.Path(path).read_bytes()
        assert path.startswith("cloud-init/") or archive[path] == content, f"{path} is not the file of the repository"
    examples = {path: one for path, one in repository("examples").items() if not path.endswith(".rs")}
    same({path for path in archive if path.startswith("examples/")}, set(examples), "examples")
    texts = {f"docs/{path.name}" for path in pathlib.Path("docs").iterdir() if path.suffix in (".md", ".json", ".svg")}
    pages = {f"docs/man/{path.name}" for path in pathlib.Path("docs/man").iterdir()}
    same({path for path in archive if path.startswith("docs/")}, texts | pages, "documents")

    executable = {path for path, (_, is_executable) in examples.items() if is_executable} | {"gpu-bootstrap"}
    with tarfile.open(directory / f"{name}.tar.gz") as tar:
        members = [(path.removeprefix(name), *rest) for path, *rest in listed(tar)]
    assert len([path for path, mode, *_ in members if mode.startswith("-")]) == len(archive)
    modes(members, executable, "archive")
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as process:
        with tarfile.open(fileobj=process.stdout, mode="r|") as tar:
            modes(list(listed(tar)), {"usr/bin/gpu-bootstrap"}, "deb")
    # FILEMODES:perms is `drwxr-xr-x`.
    query = "[%{FILENAMES}\\t%{FILEMODES:perms}\\t%{FILEUSERNAME}\\t%{FILEGROUPNAME}\\n]"
    lines = output("rpm", "--query", "--package", "--queryformat", query, rpm).splitlines()
    modes([line.split("\t") for line in lines], {"usr/bin/gpu-bootstrap"}, "rpm")

    own = [f"{DOCUMENTS}copyright", f"{DOCUMENTS}changelog.gz", "usr/share/lintian/overrides/gpu-bootstrap"]
    package(unpacked / "deb", archive, own, {"LICENSE-APACHE", "LICENSE-MIT"})
    package(unpacked / "rpm", archive, [], set())
    for root in ("deb", "rpm"):
        assert (unpacked / root / "etc/gpu-bootstrap").is_dir(), f"{root} has no directory for settings"
    fields = output("dpkg-deb", "--show", "--showformat", "${Package} ${Version} ${Architecture}", deb)
    assert fields == f"gpu-bootstrap {version.replace('-', '~')} {DEBIAN[architecture]}", fields
    fields = output("rpm", "--query", "--package", "--queryformat", "%{NAME} %{VERSION}-%{RELEASE} %{ARCH}", rpm)
    assert fields == f"gpu-bootstrap {version.replace('-', '~')}-1 {architecture}", fields
    print(f"{len(archive)} files are in the archive, the .deb and the .rpm")


# A value of each kind (src/cli/forms.rs).
VALUES = {
    "architecture": "x86_64",
    "certificate": "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg==",
    "host": "cluster.example.com",
    "https-url": "https://files.example.com/gpu-bootstrap",
    "image-name": "registry.example.com/tools",
    "instance-family": "g6",
    "ip": "10.0.0.10",
    "name": "gpu",
    "network": "10.100.0.0/16",
    "object-name": "nvidia",
    "sha256": "0123456789abcdef" * 4,
    "text": "gpu",
    "version": "1.36",
}
# The placeholders that are no value of a form, and the settings that replace them.
PLACEHOLDERS = ["@TOKEN@", "@1.36@", "@10.0.0.1:6443@", "@10.0.0.1@", "@sha256:DIGEST@"]
KUBEADM = ["cluster.version=1.36", "cluster.server=10.0.0.1:6443", f"cluster.ca-cert-hashes=sha256:{'0123456789abcdef' * 4}"]
SETTINGS = {"kubeadm": KUBEADM, "google": KUBEADM, "k3s": ["cluster.server=https://10.0.0.1:6443"]}
TOKEN = "abcdef.0123456789abcdef\n"
K3S_TOKEN = f"K10{'0123456789abcdef' * 4}::node:0123456789abcdef\n"
# The values of a published release, which contains its URL.
OF_RELEASE = ("address", "sha256")


def accepted(program, form, values, template, url, token):
    """Prints the user data of a form with all required values. The result must be the template."""
    arguments = [one for setting in SETTINGS.get(form["name"], []) for one in ("--set", setting)]
    for name, row in values.items():
        is_optional = "insert" in row or "only-with" in row
        if not is_optional and not (url and name in OF_RELEASE):
            value = "1.36.4" if row["placeholder"] == "@1.36.4@" else VALUES[row["kind"]]
            arguments += ["--value", f"{name}={value}"]
    if "@TOKEN@" in template:
        token.write_text(K3S_TOKEN if form["name"] == "k3s" else TOKEN, encoding="utf-8")
        arguments += ["--token-file", token]
    lines = template.replace("Set each `@VALUE@`. ", "").splitlines()
    placeholders = "|".join(re.escape(one) for one in [*(row["placeholder"] for row in values.values()), *PLACEHOLDERS])
    patterns = [".*".join(re.escape(part) for part in re.split(placeholders, line)) for line in lines]
    is_complete = "provider" not in form and "without-part" not in form
    for provider in form.get("provider", [None]):
        option = ["--provider", provider["name"]] if provider else []
        done = subprocess.run([*program, "user-data", form["name"], *option, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{form['name']}: {done.stderr}"
        printed = done.stdout.splitlines()
        position = 0
        for line in printed:
            while not re.fullmatch(patterns[position], line):
                assert not is_complete, f"{form['name']}: {line!r} is not {lines[position]!r}"
                position += 1
                assert position < len(patterns), f"{form['name']}: {line!r} is not in the template"
            position += 1
        assert position == len(patterns) or not is_complete, f"{form['name']}: {lines[position]!r} is missing"
        yield done.stdout


def user_data(directory, version, architecture, unpacked, runner):
    directory, unpacked = pathlib.Path(directory), pathlib.Path(unpacked)
    templates = unpacked / "archive/cloud-init"
    name = f"gpu-bootstrap-{version}-linux-{architecture}"
    program = [*runner.split(), directory / name]
    url = information(directory / f"gpu-bootstrap-{version}.buildinfo").get("Release-Url")
    digest = sha256(directory / name)

    # The packed templates come from the repository. In a published release, they have the URL and the digest, except in comments.
    expected = {}
    for path, (content, _) in repository("cloud-init").items():
        if pathlib.Path(path).name in ("README.md", "form.toml", "values.toml"):
            continue
        lines = content.decode().splitlines(keepends=True)
        if url:
            lines = [line if line.lstrip(" ").startswith("#")
                     else line.replace("@ADDRESS@", f"{url}/{name}").replace("@SHA-256@", digest) for line in lines]
        expected[path.removeprefix("cloud-init/")] = "".join(lines).encode()
    same(tree(templates), expected, "templates")

    shared = tomllib.loads(pathlib.Path("cloud-init/values.toml").read_text(encoding="utf-8"))
    found, count = set(), 0
    for path in sorted(pathlib.Path("cloud-init").glob("*/form.toml")):
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        for form in data["form"]:
            place = f"{path.parent.name}/{form['file']}"
            found.add(place)
            values = {one: (shared | data.get("value", {}))[one] for one in form["values"]}
            for text in accepted(program, form, values, expected[place].decode(), url, unpacked / "token"):
                count += 1
                if "address" in values:
                    assert (f"{url}/{name}" if url else VALUES["https-url"]) in text, text
                    assert (digest if url else VALUES["sha256"]) in text, text
    # A file of values for Helm, which has no placeholder.
    same(found, set(expected) - {"daemonset/device-plugin-values.yaml"}, "templates without a form")
    print(f"{count} documents of `user-data` have the text of the {len(found)} packed templates")


def sbom(binary, architecture, tree_file):
    document = json.loads(pathlib.Path(f"{binary}.cdx.json").read_text(encoding="utf-8"))
    # The package is not imported, because its dependencies are not installed.
    [place] = importlib.util.find_spec("cyclonedx").submodule_search_locations
    schemas = {}
    for name in ("bom-1.5", "spdx", "jsf-0.82"):
        path = pathlib.Path(place) / f"schema/_res/{name}.SNAPSHOT.schema.json"
        schemas[name] = json.loads(path.read_text(encoding="utf-8"))
    resources = [(one["$id"], referencing.Resource.from_contents(one)) for one in schemas.values()]
    validator = jsonschema.Draft7Validator(schemas["bom-1.5"], registry=referencing.Registry().with_resources(resources))
    validator.validate(document)
    for wrong in (document | {"unknown": True}, document | {"components": [{"type": "library"}]}):
        assert not validator.is_valid(wrong), "the schema accepts a wrong document"

    program = document["metadata"]["component"]
    assert program["hashes"] == [{"alg": "SHA-256", "content": sha256(binary)}], program
    assert program["properties"] == [{"name": "rust:target", "value": f"{architecture}-unknown-linux-gnu"}], program
    found = {f"{one['name']} v{one['version']}": one["licenses"][0]["expression"] for one in [program, *document["components"]]}
    assert len(found) == len(document["components"]) + 1
    expected = {}
    for line in pathlib.Path(tree_file).read_text(encoding="utf-8").splitlines():
        package, license_expression = line.removesuffix(" (*)").split("|")
        expected[" ".join(package.split(" ")[:2])] = re.sub(r"\s*/\s*", " OR ", license_expression)
    same(found, expected, "crates and licenses")
    # `cargo tree` has also created the list, so compare it with the lock file: it must not contain crates that only tests use.
    locked = tomllib.loads(pathlib.Path("Cargo.lock").read_text(encoding="utf-8"))["package"]
    names = {one.split(" ")[0] for one in found}
    assert set(found) <= {f"{one['name']} v{one['version']}" for one in locked}
    assert {"tokio", "serde", "gpu-compat"} <= names, names
    assert not {"insta", "proptest", "gpu-bootstrap-vm"} & names, names
    # References that do not exist.
    references = {one["bom-ref"] for one in [program, *document["components"]]}
    for one in document["dependencies"]:
        assert {one["ref"], *one["dependsOn"]} <= references, one
    print(f"{len(found)} crates with licenses")


COMMANDS = {"files": files, "facts": facts, "config": config, "packages": packages, "user-data": user_data, "sbom": sbom}
COMMANDS[sys.argv[1]](*sys.argv[2:])

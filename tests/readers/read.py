"""Compares what the readers of each format of `check` say with its JSON document; see run.sh."""

import collections
import html.parser
import json
import pathlib
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

import junitparser

program, out = sys.argv[1], pathlib.Path(sys.argv[2])
hosts = pathlib.Path("tests/hosts")
# The root of each machine, the status of `check`, and how many GPUs and NVSwitches it has.
MACHINES = {
    "healthy": (out / "healthy", 0, 1, 0),
    "broken": (hosts / "debian-12-bare-h100/root", 4, 1, 0),
    "nvswitch": (hosts / "ubuntu-24.04-h100x8/root", 4, 8, 4),
}
# Chromium draws a page in seconds; a slow machine takes longer.
DEADLINE = 60


def run(command, text=None):
    """The output of a command that must succeed."""
    ended = subprocess.run(command, input=text, capture_output=True, text=True, timeout=DEADLINE)
    if ended.returncode != 0:
        raise SystemExit(f"{command[0]}: status {ended.returncode}\n{ended.stdout}{ended.stderr}")
    return ended


def check(root, status, form):
    """What `check` writes; the disk that the tree lies on is not the machine's."""
    command = [program, "check", "--root", root, "--skip", "preflight", "--format", form]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert ended.returncode == status, f"{form} of {root}: status {ended.returncode}\n{ended.stderr}"
    return ended.stdout


def same(what, read, wanted):
    """Fails with the first differences."""
    if read != wanted:
        both = sorted(set(read) | set(wanted))
        lines = [f"{key}: {read.get(key)} instead of {wanted.get(key)}" for key in both if read.get(key) != wanted.get(key)]
        raise SystemExit(f"{what}:\n" + "\n".join(lines[:20]))


def tap(text):
    """Each id with what Perl's parser makes of it; a warning is in the block of YAML alone."""
    tests = json.loads(run(["perl", "tests/readers/read.pl"], text).stdout)
    found = {}
    for test in tests:
        name = re.match(r"-? ?([^:]+): ", test["description"]).group(1)
        verdict = "skip" if test["skip"] else "pass" if test["ok"] else "fail"
        found[name] = test.get("yaml", {}).get("severity", verdict)
    assert len(found) == len(tests), "an id is there twice"
    return found


def junit(text):
    """Each id with its result; a warning is a success with an output."""
    suites = junitparser.JUnitXml.fromstring(text.encode())
    found = {}
    for suite in suites:
        for case in suite:
            results = {junitparser.Failure: "fail", junitparser.Skipped: "skip", junitparser.Error: "error"}
            # Versions before 2 have one result in place of a list.
            kinds = case.result if isinstance(case.result, list) else [case.result]
            words = [results[type(kind)] for kind in kinds if kind is not None]
            said = (case.system_out or "").startswith("warning: ")
            found[case.name] = words[0] if words else "warn" if said else "pass"
    return found


def markdown(text):
    """The ids of what a person should read, with the heading above each."""
    page = run(["cmark-gfm"], text).stdout
    found, heading = {}, None
    for kind, word, name in re.findall(r"<(h3)>(\w+)</h3>|<p><strong>.*?</strong> \(<code>(.*?)</code>\)", page):
        if kind:
            heading = {"Failures": "fail", "Warnings": "warn", "Unknown": "unknown"}[word]
        else:
            found[name] = heading
    return found


class Page(html.parser.HTMLParser):
    """The findings and devices of the page, as Chromium has them after it has read it."""

    def __init__(self):
        super().__init__()
        self.findings, self.devices, self.loads = {}, collections.Counter(), []
        self.verdict = self.row = None
        self.path = []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag not in ("meta", "link", "img", "br"):
            self.path.append(tag)
        if tag == "details":
            self.verdict = attributes["class"]
        if tag == "li" and self.row:
            self.devices[self.row] += 1
        if tag in ("script", "link", "img", "iframe", "object") or "style" in attributes:
            self.loads.append(tag)

    def handle_endtag(self, tag):
        while self.path and self.path.pop() != tag:
            pass
        if tag == "ul":
            self.row = None

    def handle_data(self, data):
        if self.path[-2:] == ["summary", "code"]:
            self.findings[data] = self.verdict
        if self.path[-2:] == ["div", "span"]:
            self.row = data


def chromium(name, text):
    """What Chromium has of a page, and a picture of it."""
    page, picture = out / f"{name}.html", out / f"{name}.png"
    page.write_text(text)
    picture.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        browser = ["chromium-headless-shell", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--window-size=1200,1600"]
        read = run([*browser, "--dump-dom", page.as_uri()]).stdout
        run([*browser, f"--screenshot={picture}", page.as_uri()])
    width, height = struct.unpack(">II", picture.read_bytes()[16:24])
    assert (width, height) == (1200, 1600), f"{picture}: {width} x {height}"
    # A picture of one colour has some kilobytes.
    assert picture.stat().st_size > 30_000, f"{picture} is empty"
    reader = Page()
    reader.feed(read)
    assert not reader.loads, f"{name}: the page loads {reader.loads}"
    return reader


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def scraped(text):
    """The findings that Prometheus has after it has scraped them from node_exporter."""
    programs = out / "root/usr/bin"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "gpu_bootstrap.prom").write_text(text)
        exporter, server = free_port(), free_port()
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s}\n"
            f"scrape_configs: [{{job_name: node, static_configs: [{{targets: ['127.0.0.1:{exporter}']}}]}}]\n"
        )
        commands = [
            [programs / "prometheus-node-exporter", "--collector.disable-defaults", "--collector.textfile",
             f"--collector.textfile.directory={folder}", f"--web.listen-address=127.0.0.1:{exporter}"],
            [programs / "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{server}"],
        ]  # fmt: skip
        log = open(out / "prometheus.log", "w")
        started = [subprocess.Popen(command, stdout=log, stderr=log) for command in commands]
        try:
            until = time.monotonic() + DEADLINE
            while True:
                assert all(process.poll() is None for process in started), f"one has ended, see {log.name}"
                assert time.monotonic() < until, f"Prometheus has no metrics, see {log.name}"
                query = urllib.parse.urlencode({"query": "gpu_bootstrap_finding == 1 or node_textfile_scrape_error"})
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{server}/api/v1/query?{query}", timeout=5) as answer:
                        result = json.load(answer)["data"]["result"]
                except OSError:
                    result = []
                if result:
                    break
                time.sleep(0.2)
        finally:
            for process in started:
                process.terminate()
                process.wait()
    errors = [one for one in result if one["metric"]["__name__"] == "node_textfile_scrape_error"]
    assert [one["value"][1] for one in errors] == ["0"], errors
    return {one["metric"]["id"]: one["metric"]["status"] for one in result if "id" in one["metric"]}


for name, (root, status, gpus, switches) in MACHINES.items():
    document = json.loads(check(root, status, "json"))
    wanted = {finding["id"]: finding["status"] for finding in document["findings"]}
    # TAP and JUnit know no fifth verdict.
    four = {key: "skip" if verdict == "unknown" else verdict for key, verdict in wanted.items()}
    same(f"{name}, TAP", tap(check(root, status, "tap")), four)
    same(f"{name}, JUnit", junit(check(root, status, "junit")), four)
    metrics = check(root, status, "prometheus")
    run([out / "root/usr/bin/promtool", "check", "metrics"], metrics)
    same(f"{name}, Prometheus", scraped(metrics), wanted)
    read = {key: verdict for key, verdict in wanted.items() if verdict in ("fail", "warn", "unknown")}
    same(f"{name}, Markdown", markdown(check(root, status, "markdown")), read)
    page = chromium(name, check(root, status, "html"))
    same(f"{name}, HTML", page.findings, wanted)
    devices = (page.devices["GPUs"], page.devices["NVSwitches"])
    assert devices == (gpus, switches), f"{name}: the page shows {page.devices}"
    print(f"{name}: {len(wanted)} findings are the same in each format; {out / name}.png shows the page")

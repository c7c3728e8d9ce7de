"""Compares each output format of `check`, as parsed by other programs, with its JSON output. Used by run.sh."""

import collections
import contextlib
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
# The path of the node-problem-detector binary, which no distribution packages.
detector = sys.argv[3] if len(sys.argv) > 3 else None
hosts = pathlib.Path("tests/hosts")
# For each machine: root directory, exit code of `check`, number of GPUs, number of NVSwitches.
MACHINES = {
    "healthy": (out / "healthy", 0, 1, 0),
    "broken": (hosts / "debian-12-bare-h100/root", 4, 1, 0),
    "nvswitch": (hosts / "ubuntu-24.04-h100x8/root", 4, 8, 4),
}
# A root directory without any data of a machine.
EMPTY = out / "empty"
# Seconds. Chromium normally renders a page in a few seconds.
DEADLINE = 60


def run(command, text=None):
    """Runs a command, which must succeed, and returns the finished process."""
    finished = subprocess.run(command, input=text, capture_output=True, text=True, timeout=DEADLINE)
    if finished.returncode != 0:
        raise SystemExit(f"{command[0]}: exit code {finished.returncode}\n{finished.stdout}{finished.stderr}")
    return finished


def command(root, form):
    """Returns the `check` command for a root directory.

    Skips the preflight layer, which would measure the disk of the host. The empty root runs all layers, because `check` reports
    missing data only if no layer is skipped."""
    skipped = [] if root == EMPTY else ["--skip", "preflight"]
    return [program, "check", "--root", str(pathlib.Path(root).resolve()), *skipped, "--format", form]


def check(root, status, form):
    """Returns the output of `check`, which must exit with this code."""
    finished = subprocess.run(command(root, form), capture_output=True, text=True, timeout=DEADLINE)
    assert finished.returncode == status, f"{form} of {root}: exit code {finished.returncode}\n{finished.stderr}"
    return finished.stdout


def assert_equal(what, actual, expected):
    """Fails with the first differences."""
    if actual != expected:
        keys = sorted(set(actual) | set(expected))
        lines = [f"{key}: {actual.get(key)} instead of {expected.get(key)}" for key in keys if actual.get(key) != expected.get(key)]
        raise SystemExit(f"{what}:\n" + "\n".join(lines[:20]))


def tap(text):
    """Returns the result for each ID, as parsed by TAP::Parser. Warnings are marked only in the YAML block."""
    tests = json.loads(run(["perl", "tests/readers/read.pl"], text).stdout)
    found = {}
    for test in tests:
        name = re.match(r"-? ?([^:]+): ", test["description"]).group(1)
        verdict = "skip" if test["skip"] else "pass" if test["ok"] else "fail"
        found[name] = test.get("yaml", {}).get("severity", verdict)
    assert len(found) == len(tests), "duplicate ID"
    return found


def junit(text):
    """Returns the result for each ID. A warning is a passed test with output."""
    suites = junitparser.JUnitXml.fromstring(text.encode())
    found = {}
    for suite in suites:
        for case in suite:
            results = {junitparser.Failure: "fail", junitparser.Skipped: "skip", junitparser.Error: "error"}
            # Before version 2, this is a single result instead of a list.
            kinds = case.result if isinstance(case.result, list) else [case.result]
            words = [results[type(kind)] for kind in kinds if kind is not None]
            warned = (case.system_out or "").startswith("warning: ")
            found[case.name] = words[0] if words else "warn" if warned else "pass"
    return found


HEADINGS = {
    "Faults": "fault",
    "Risks": "risk",
    "Differences from the settings": "difference",
    "Unknown": "unknown",
}


def markdown(text):
    """Returns the kind of each problem by ID. The heading specifies the kind."""
    page = run(["cmark-gfm"], text).stdout
    found, kind = {}, None
    for heading, name in re.findall(r"<h3>(.*?)</h3>|<p><strong>.*?</strong> \(<code>(.*?)</code>\)", page):
        if heading:
            kind = HEADINGS[heading]
        else:
            found[name] = kind
    return found


class Page(html.parser.HTMLParser):
    """The findings and devices of the page, parsed from Chromium's DOM."""

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
    """Renders a page in Chromium, writes a screenshot, and returns the parsed DOM."""
    page, picture = out / f"{name}.html", out / f"{name}.png"
    page.write_text(text)
    picture.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        browser = ["chromium-headless-shell", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--window-size=1200,1600"]
        read = run([*browser, "--dump-dom", page.as_uri()]).stdout
        run([*browser, f"--screenshot={picture}", page.as_uri()])
    width, height = struct.unpack(">II", picture.read_bytes()[16:24])
    assert (width, height) == (1200, 1600), f"{picture}: {width} x {height}"
    # A blank screenshot has only a few kilobytes.
    assert picture.stat().st_size > 30_000, f"{picture} is empty"
    reader = Page()
    reader.feed(read)
    assert not reader.loads, f"{name}: the page loads {reader.loads}"
    return reader


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


@contextlib.contextmanager
def running(log, *commands):
    """Runs programs with their output in a log file. `wait_for` polls a function until it returns a result."""
    with open(out / log, "w") as file:
        started = [subprocess.Popen(command, stdout=file, stderr=file) for command in commands]

        def wait_for(poll, what):
            until = time.monotonic() + DEADLINE
            while not (found := poll()):
                assert all(process.poll() is None for process in started), f"a program exited early, see {file.name}"
                assert time.monotonic() < until, f"timeout: no {what}, see {file.name}"
                time.sleep(0.2)
            return found

        try:
            yield wait_for
        finally:
            for process in started:
                process.terminate()
                process.wait()


def get_json(url):
    """Returns the JSON document of a server, or None if the server does not respond yet."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return json.load(response)
    except OSError:
        return None


def scraped(text):
    """Returns the findings stored in Prometheus after it has scraped node_exporter."""
    programs = out / "root/usr/bin"
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        (directory / "gpu_bootstrap.prom").write_text(text)
        exporter, server = free_port(), free_port()
        (directory / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s}\n"
            f"scrape_configs: [{{job_name: node, static_configs: [{{targets: ['127.0.0.1:{exporter}']}}]}}]\n"
        )
        commands = [
            [programs / "prometheus-node-exporter", "--collector.disable-defaults", "--collector.textfile",
             f"--collector.textfile.directory={directory}", f"--web.listen-address=127.0.0.1:{exporter}"],
            [programs / "prometheus", f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data",
             f"--web.listen-address=127.0.0.1:{server}"],
        ]  # fmt: skip
        query = urllib.parse.urlencode({"query": "gpu_bootstrap_finding == 1 or node_textfile_scrape_error"})
        url = f"http://127.0.0.1:{server}/api/v1/query?{query}"
        with running("prometheus.log", *commands) as wait_for:
            result = wait_for(lambda: (get_json(url) or {"data": {"result": []}})["data"]["result"], "metrics in Prometheus")
    errors = [one for one in result if one["metric"]["__name__"] == "node_textfile_scrape_error"]
    assert [one["value"][1] for one in errors] == ["0"], errors
    return {one["metric"]["id"]: one["metric"]["status"] for one in result if "id" in one["metric"]}


def causes(document, status):
    """Returns the worst status, and the IDs of its findings that are not caused by another finding."""
    findings = document["findings"]
    words = [word for word in ("fail", "warn") if any(finding["status"] == word for finding in findings)]
    word = words[0] if words else "unknown" if status else "pass"
    return word, [one["id"] for one in findings if one["status"] == word != "pass" and "because" not in one]


DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
# A Nagios Core configuration based on its documentation, running as root in a temporary directory, with one service.
NAGIOS = """
log_file={directory}/log
cfg_file={directory}/objects
object_cache_file={directory}/cache
status_file={directory}/status
status_update_interval=1
temp_file={directory}/temporary
temp_path={directory}
lock_file={directory}/lock
query_socket={directory}/socket
check_result_path={directory}
check_external_commands=0
check_for_updates=0
execute_host_checks=0
enable_notifications=0
retain_state_information=0
service_inter_check_delay_method=n
nagios_user=root
nagios_group=root
"""
OBJECTS = """
define timeperiod {{
    timeperiod_name always
    alias always
    {days}
}}
define command {{
    command_name check_gpu
    command_line {command}
}}
define contact {{
    contact_name nobody
    host_notification_commands check_gpu
    service_notification_commands check_gpu
    host_notification_period always
    service_notification_period always
}}
define host {{
    host_name node
    contacts nobody
    address 127.0.0.1
    max_check_attempts 1
    check_period always
}}
define service {{
    host_name node
    service_description gpu
    check_command check_gpu
    check_period always
    max_check_attempts 1
    check_interval 1
    retry_interval 1
}}
"""


def nagios(root):
    """Returns the result in Nagios Core after it has run `check` as a plugin: state, IDs in the order of the lines, counts."""
    days = "\n    ".join(f"{day} 00:00-24:00" for day in DAYS)
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        (directory / "settings").write_text(NAGIOS.format(directory=directory))
        (directory / "objects").write_text(OBJECTS.format(days=days, command=" ".join(command(root, "nagios"))))

        def poll():
            if not (directory / "status").exists():
                return None
            _, _, service = (directory / "status").read_text().partition("servicestatus {")
            found = dict(line.strip().split("=", 1) for line in service.splitlines() if "=" in line)
            return found if found.get("has_been_checked") == "1" else None

        with running("nagios.log", [out / "root/usr/sbin/nagios4", directory / "settings"]) as wait_for:
            found = wait_for(poll, "result in Nagios")
    lines = [found["plugin_output"].split(" - ", 1)[1], *found["long_plugin_output"].split("\\n")]
    problems = [re.match(r"(?:fault|risk|difference|unknown) (\S+): ", line) for line in lines]
    ids = [problem[1] for problem in problems if problem]
    counts = dict(one.split("=") for one in found["performance_data"].split())
    return int(found["current_state"]), ids, {key: int(value) for key, value in counts.items()}


def check_nagios(name, root, status, document):
    """Compares the result in Nagios with the JSON document."""
    word, ids = causes(document, status)
    counts = {key: count for key, count in document["summary"].items() if key != "skip"}
    expected = ({"pass": 0, "warn": 1, "fail": 2, "unknown": 3}[word], ids, counts)
    actual = nagios(root)
    assert actual == expected, f"{name}, Nagios: {actual} instead of {expected}"


def check_detector(trees):
    """Runs node-problem-detector with the configuration of docs/check.md while one machine changes to each of these trees, and waits
    for each expected condition. Conditions are read from its own HTTP endpoint, because there is no API server."""
    document = pathlib.Path("docs/check.md").read_text()
    _, _, section = document.partition("\n## Node problem detector\n")
    configuration = json.loads(re.search(r"```json\n(.*?)```", section, re.S).group(1))
    [condition], [rule] = configuration["conditions"], configuration["rules"]
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        rule["path"] = program
        rule["args"] += ["--root", str(directory / "machine")]
        configuration["pluginConfig"]["invoke_interval"] = "1s"
        (directory / "gpu-bootstrap.json").write_text(json.dumps(configuration))
        server, unused = free_port(), free_port()
        url = f"http://127.0.0.1:{server}/conditions"
        daemon = [
            detector, f"--config.custom-plugin-monitor={directory}/gpu-bootstrap.json", "--hostname-override=node",
            f"--port={server}", "--prometheus-port=0", f"--apiserver-override=http://127.0.0.1:{unused}?inClusterConfig=false",
            "--apiserver-wait-timeout=1s", "--apiserver-wait-interval=1s", "--k8s-exporter-write-events=false",
        ]  # fmt: skip

        def switch_to(tree):
            """Replaces the machine with this tree, and returns the expected condition."""
            (directory / "next").symlink_to(pathlib.Path(tree).resolve())
            (directory / "next").replace(directory / "machine")
            finished = subprocess.run([program, *rule["args"]], capture_output=True, text=True, timeout=DEADLINE)
            text = finished.stdout.strip()
            status, reason, message = {
                0: ("False", condition["reason"], condition["message"]),
                1: ("True", rule["reason"], text),
                2: ("Unknown", condition["reason"], text),
            }[finished.returncode]
            return {"type": rule["condition"], "status": status, "reason": reason, "message": message}

        expected = [switch_to(trees[0])]
        with running("node-problem-detector.log", daemon) as wait_for:
            for tree in [*trees[1:], None]:
                wait_for(lambda: any(one | expected[-1] == one for one in get_json(url) or []), f"condition {expected[-1]}")
                if tree:
                    expected.append(switch_to(tree))
    return [one["status"] for one in expected]


for name, (root, status, gpus, switches) in MACHINES.items():
    document = json.loads(check(root, status, "json"))
    expected = {finding["id"]: finding["status"] for finding in document["findings"]}
    # TAP and JUnit have no status for unknown results.
    four = {key: "skip" if verdict == "unknown" else verdict for key, verdict in expected.items()}
    assert_equal(f"{name}, TAP", tap(check(root, status, "tap")), four)
    assert_equal(f"{name}, JUnit", junit(check(root, status, "junit")), four)
    metrics = check(root, status, "prometheus")
    run([out / "root/usr/bin/promtool", "check", "metrics"], metrics)
    assert_equal(f"{name}, Prometheus", scraped(metrics), expected)
    problems = [one for one in document["findings"] if one["status"] in ("fail", "warn", "unknown")]
    kinds = {one["id"]: one.get("kind") or one["status"] for one in problems}
    assert_equal(f"{name}, Markdown", markdown(check(root, status, "markdown")), kinds)
    check_nagios(name, root, status, document)
    page = chromium(name, check(root, status, "html"))
    assert_equal(f"{name}, HTML", page.findings, expected)
    devices = (page.devices["GPUs"], page.devices["NVSwitches"])
    assert devices == (gpus, switches), f"{name}: the page shows {page.devices}"
    print(f"{name}: all formats contain the same {len(expected)} findings, screenshot in {out / name}.png")

check_nagios("empty", EMPTY, 4, json.loads(check(EMPTY, 4, "json")))
if detector:
    trees = [MACHINES["broken"][0], MACHINES["nvswitch"][0], EMPTY, MACHINES["healthy"][0]]
    statuses = check_detector(trees)
    assert statuses == ["True", "True", "Unknown", "False"], statuses
    print("node-problem-detector: the condition of each machine is correct")
else:
    print("node-problem-detector: skipped, because NODE_PROBLEM_DETECTOR is not set")

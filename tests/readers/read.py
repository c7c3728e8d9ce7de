"""Compares what the readers of each format of `check` say with its JSON document; see run.sh."""

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
# Nobody packages the node problem detector: whoever has its program names it.
detector = sys.argv[3] if len(sys.argv) > 3 else None
hosts = pathlib.Path("tests/hosts")
# The root of each machine, the status of `check`, and how many GPUs and NVSwitches it has.
MACHINES = {
    "healthy": (out / "healthy", 0, 1, 0),
    "broken": (hosts / "debian-12-bare-h100/root", 4, 1, 0),
    "nvswitch": (hosts / "ubuntu-24.04-h100x8/root", 4, 8, 4),
}
# A copy in which nothing is that tells of a machine.
EMPTY = out / "empty"
# Chromium draws a page in seconds; a slow machine takes longer.
DEADLINE = 60


def run(command, text=None):
    """The output of a command that must succeed."""
    ended = subprocess.run(command, input=text, capture_output=True, text=True, timeout=DEADLINE)
    if ended.returncode != 0:
        raise SystemExit(f"{command[0]}: status {ended.returncode}\n{ended.stdout}{ended.stderr}")
    return ended


def command(root, form):
    """`check` of a tree; the disk that it lies on is not the machine's. That nothing is known is said only of a whole machine."""
    skipped = [] if root == EMPTY else ["--skip", "preflight"]
    return [program, "check", "--root", str(pathlib.Path(root).resolve()), *skipped, "--format", form]


def check(root, status, form):
    """What `check` writes."""
    ended = subprocess.run(command(root, form), capture_output=True, text=True, timeout=DEADLINE)
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


HEADINGS = {
    "Faults": "fault",
    "Risks": "risk",
    "Differences from the settings": "difference",
    "Unknown": "unknown",
}


def markdown(text):
    """The id of each problem, with its kind according to the heading."""
    page = run(["cmark-gfm"], text).stdout
    found, kind = {}, None
    for heading, name in re.findall(r"<h3>(.*?)</h3>|<p><strong>.*?</strong> \(<code>(.*?)</code>\)", page):
        if heading:
            kind = HEADINGS[heading]
        else:
            found[name] = kind
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


@contextlib.contextmanager
def running(log, *commands):
    """Runs programs with their output in a file; `awaited` looks at them until there is something to see."""
    with open(out / log, "w") as file:
        started = [subprocess.Popen(command, stdout=file, stderr=file) for command in commands]

        def awaited(look, what):
            until = time.monotonic() + DEADLINE
            while not (found := look()):
                assert all(process.poll() is None for process in started), f"a program has ended, see {file.name}"
                assert time.monotonic() < until, f"no {what}, see {file.name}"
                time.sleep(0.2)
            return found

        try:
            yield awaited
        finally:
            for process in started:
                process.terminate()
                process.wait()


def asked(url):
    """The document that a server has, or nothing if it does not answer yet."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.load(answer)
    except OSError:
        return None


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
        query = urllib.parse.urlencode({"query": "gpu_bootstrap_finding == 1 or node_textfile_scrape_error"})
        url = f"http://127.0.0.1:{server}/api/v1/query?{query}"
        with running("prometheus.log", *commands) as awaited:
            result = awaited(lambda: (asked(url) or {"data": {"result": []}})["data"]["result"], "metrics in Prometheus")
    errors = [one for one in result if one["metric"]["__name__"] == "node_textfile_scrape_error"]
    assert [one["value"][1] for one in errors] == ["0"], errors
    return {one["metric"]["id"]: one["metric"]["status"] for one in result if "id" in one["metric"]}


def causes(document, status):
    """The verdict that counts, and the ids with it that have no root cause."""
    findings = document["findings"]
    words = [word for word in ("fail", "warn") if any(finding["status"] == word for finding in findings)]
    word = words[0] if words else "unknown" if status else "pass"
    return word, [one["id"] for one in findings if one["status"] == word != "pass" and "because" not in one]


DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
# Nagios Core as its documentation has it, without users and folders of its own, and with one service.
NAGIOS = """
log_file={folder}/log
cfg_file={folder}/objects
object_cache_file={folder}/cache
status_file={folder}/status
status_update_interval=1
temp_file={folder}/temporary
temp_path={folder}
lock_file={folder}/lock
query_socket={folder}/socket
check_result_path={folder}
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
    """What Nagios Core has of a machine after it has run `check` as its plugin: state, ids in the order of its lines, counts."""
    days = "\n    ".join(f"{day} 00:00-24:00" for day in DAYS)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "settings").write_text(NAGIOS.format(folder=folder))
        (folder / "objects").write_text(OBJECTS.format(days=days, command=" ".join(command(root, "nagios"))))

        def look():
            if not (folder / "status").exists():
                return None
            _, _, service = (folder / "status").read_text().partition("servicestatus {")
            found = dict(line.strip().split("=", 1) for line in service.splitlines() if "=" in line)
            return found if found.get("has_been_checked") == "1" else None

        with running("nagios.log", [out / "root/usr/sbin/nagios4", folder / "settings"]) as awaited:
            found = awaited(look, "result in Nagios")
    lines = [found["plugin_output"].split(" - ", 1)[1], *found["long_plugin_output"].split("\\n")]
    problems = [re.match(r"(?:fault|risk|difference|unknown) (\S+): ", line) for line in lines]
    ids = [problem[1] for problem in problems if problem]
    counts = dict(one.split("=") for one in found["performance_data"].split())
    return int(found["current_state"]), ids, {key: int(value) for key, value in counts.items()}


def same_in_nagios(name, root, status, document):
    """Nagios has what the document of a machine says."""
    word, ids = causes(document, status)
    counts = {key: count for key, count in document["summary"].items() if key != "skip"}
    wanted = ({"pass": 0, "warn": 1, "fail": 2, "unknown": 3}[word], ids, counts)
    read = nagios(root)
    assert read == wanted, f"{name}, Nagios: {read} instead of {wanted}"


def same_in_detector(trees):
    """A node problem detector with the configuration of docs/check.md has the condition of each of these trees, while one machine
    becomes one after the other. It has no API server, and tells its conditions itself."""
    document = pathlib.Path("docs/check.md").read_text()
    _, _, section = document.partition("\n## A condition by the node problem detector\n")
    configuration = json.loads(re.search(r"```json\n(.*?)```", section, re.S).group(1))
    [condition], [rule] = configuration["conditions"], configuration["rules"]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        rule["path"] = program
        rule["args"] += ["--root", str(folder / "machine")]
        configuration["pluginConfig"]["invoke_interval"] = "1s"
        (folder / "gpu-bootstrap.json").write_text(json.dumps(configuration))
        server, nobody = free_port(), free_port()
        url = f"http://127.0.0.1:{server}/conditions"
        daemon = [
            detector, f"--config.custom-plugin-monitor={folder}/gpu-bootstrap.json", "--hostname-override=node",
            f"--port={server}", "--prometheus-port=0", f"--apiserver-override=http://127.0.0.1:{nobody}?inClusterConfig=false",
            "--apiserver-wait-timeout=1s", "--apiserver-wait-interval=1s", "--k8s-exporter-write-events=false",
        ]  # fmt: skip

        def become(tree):
            """The condition that the machine must have as this tree."""
            (folder / "next").symlink_to(pathlib.Path(tree).resolve())
            (folder / "next").replace(folder / "machine")
            said = subprocess.run([program, *rule["args"]], capture_output=True, text=True, timeout=DEADLINE)
            text = said.stdout.strip()
            status, reason, message = {
                0: ("False", condition["reason"], condition["message"]),
                1: ("True", rule["reason"], text),
                2: ("Unknown", condition["reason"], text),
            }[said.returncode]
            return {"type": rule["condition"], "status": status, "reason": reason, "message": message}

        wanted = [become(trees[0])]
        with running("node-problem-detector.log", daemon) as awaited:
            for tree in [*trees[1:], None]:
                awaited(lambda: any(one | wanted[-1] == one for one in asked(url) or []), f"condition {wanted[-1]} in the detector")
                if tree:
                    wanted.append(become(tree))
    return [one["status"] for one in wanted]


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
    problems = [one for one in document["findings"] if one["status"] in ("fail", "warn", "unknown")]
    kinds = {one["id"]: one.get("kind") or one["status"] for one in problems}
    same(f"{name}, Markdown", markdown(check(root, status, "markdown")), kinds)
    same_in_nagios(name, root, status, document)
    page = chromium(name, check(root, status, "html"))
    same(f"{name}, HTML", page.findings, wanted)
    devices = (page.devices["GPUs"], page.devices["NVSwitches"])
    assert devices == (gpus, switches), f"{name}: the page shows {page.devices}"
    print(f"{name}: {len(wanted)} findings are the same in each format; {out / name}.png shows the page")

same_in_nagios("empty", EMPTY, 4, json.loads(check(EMPTY, 4, "json")))
if detector:
    trees = [MACHINES["broken"][0], MACHINES["nvswitch"][0], EMPTY, MACHINES["healthy"][0]]
    said = same_in_detector(trees)
    assert said == ["True", "True", "Unknown", "False"], said
    print("the node problem detector has the condition of each machine")
else:
    print("the node problem detector was not named: what it makes of the plugin was not looked at")

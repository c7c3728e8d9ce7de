"""Tests the files of examples/monitoring and `report` with a thousand nodes. Used by run.sh.

The nodes have the documents and the metrics of a real `check`, with planted problems. Prometheus scrapes them, and its alerts must
be exactly those of the planted problems. `report` must list all outliers and no other node."""

import collections
import contextlib
import http.server
import json
import pathlib
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import yaml

program, out = sys.argv[1], pathlib.Path(sys.argv[2])
monitoring = pathlib.Path("examples/monitoring")
tools = out / "root/usr/bin"
NODES = 1000
# Seconds.
DEADLINE = 120


def check(form):
    """Returns the output of `check` for a machine whose driver works."""
    command = [program, "check", "--root", str(out / "healthy"), "--skip", "preflight", "--format", form]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def rules(directory):
    """Writes the rules as a file for Prometheus, and runs their tests."""
    rule = yaml.safe_load((monitoring / "prometheus-rule.yaml").read_text())
    assert (rule["apiVersion"], rule["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule"), rule
    (directory / "rules.yaml").write_text(yaml.safe_dump(rule["spec"], sort_keys=False))
    (directory / "test.yaml").write_text((monitoring / "test.yaml").read_text())
    promtool(directory, "check", "rules", "rules.yaml")
    promtool(directory, "test", "rules", "test.yaml")
    # A rule without its last exception must fail the tests.
    for group in rule["spec"]["groups"]:
        for one in group["rules"]:
            if "unless" not in one["expr"] or one["alert"] == "GPUNodeMetricsMissing":
                continue
            expr = one["expr"]
            one["expr"] = expr[: expr.rindex("unless")]
            (directory / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]))
            finished = subprocess.run([tools / "promtool", "test", "rules", "test.yaml"], cwd=directory, capture_output=True)
            assert finished.returncode != 0, f"the exception of {one['alert']} is not tested"
            one["expr"] = expr
    return rule["spec"]


def promtool(directory, *words):
    finished = subprocess.run([tools / "promtool", *words], cwd=directory, capture_output=True, text=True, timeout=DEADLINE)
    assert finished.returncode == 0, finished.stdout + finished.stderr


class Fleet:
    """The metrics of all nodes. After `change`, two nodes lose a GPU or their metrics."""

    def __init__(self):
        text = check("prometheus")
        # The rules do not use the findings.
        self.lines = [line for line in text.splitlines() if not line.startswith(("gpu_bootstrap_finding", "#"))]
        self.changed = False
        self.now = time.time()
        assert sum(line.startswith("gpu_bootstrap_info{") for line in self.lines) == 1, text

    def of(self, number):
        lines = self.lines + ["gpu_bootstrap_reboot_pending 0", "gpu_bootstrap_run_active 0"]
        mtime = self.now
        fault = 'gpu_bootstrap_root_cause{id="log.fell-off-bus",layer="driver",kind="fault",remedy="power-cycle"} 1'

        def replaced(start, end):
            return [line if not line.startswith(start) else line.rsplit(" ", 1)[0] + " " + end for line in lines]

        if number in (17, 18):
            lines = [*replaced("gpu_bootstrap_check_success", "0"), fault]
        if number == 23:
            lines.append('gpu_bootstrap_root_cause{id="packages.hold",layer="driver",kind="difference",remedy="reconfigure"} 1')
        if number == 42:
            lines = [line.replace('driver="', 'driver="9') for line in lines]
        if number == 99:
            lines = [line.replace('kernel="', 'kernel="9') for line in lines]
        if number == 150:
            lines = replaced("gpu_bootstrap_reboot_pending", "1")
        if number == 200:
            # A driver upgrade.
            lines = [*replaced("gpu_bootstrap_run_active", "1"), fault]
        if number == 300:
            lines = replaced("gpu_bootstrap_check_success", "0")
        if number in VALIDATED:
            lines.append(f"gpu_bootstrap_validation_timestamp_seconds {self.now - VALIDATED[number]}")
            lines.append(f"gpu_bootstrap_time_to_ready_seconds {READY[number]}")
        if number == 400:
            mtime -= 3600
        if number == 500 and self.changed:
            lines = replaced("gpu_bootstrap_gpus", "0")
        if number == 600 and self.changed:
            return "\n"
        lines.append(f'node_textfile_mtime_seconds{{file="/textfile/gpu_bootstrap.prom"}} {mtime}')
        return "\n".join(lines) + "\n"


# The age of the last validation and the duration of the installation of some nodes, in seconds.
VALIDATED = {700: 3600, 701: 30 * 86400, 702: 60}
READY = {700: 300, 701: 240, 702: 900}

EXPECTED = {
    ("GPUNodeFault", "17"), ("GPUNodeFault", "18"), ("GPUNodeDrift", "23"), ("GPUNodeDriverDiffers", "42"),
    ("GPUNodeKernelDiffers", "99"), ("GPUNodeRebootPending", "150"), ("GPUNodeMaintenanceStuck", "200"),
    ("GPUNodeCheckIncomplete", "300"), ("GPUNodeCheckStale", "400"), ("GPUNodeLostGPU", "500"), ("GPUNodeMetricsMissing", "600"),
}  # fmt: skip


def alerts(directory, spec):
    """Runs Prometheus with the rules without their delays, until each planted problem has fired."""
    fleet = Fleet()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = fleet.of(int(self.path.rsplit("/", 1)[1])).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            # Prometheus may have stopped.
            with contextlib.suppress(BrokenPipeError):
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for group in spec["groups"]:
        group["interval"] = "2s"
        for rule in group["rules"]:
            rule["for"] = "0s"
    (directory / "rules.yaml").write_text(yaml.safe_dump(spec))
    address = f"127.0.0.1:{server.server_port}"
    # The path and the instance of a node come from its target.
    relabel = [
        {"source_labels": ["__address__"], "target_label": "__metrics_path__", "replacement": "/$1"},
        {"source_labels": ["__address__"], "target_label": "instance"},
        {"target_label": "__address__", "replacement": address},
    ]
    targets = [{"targets": [str(number) for number in range(NODES)]}]
    job = {"job_name": "node", "static_configs": targets, "relabel_configs": relabel}
    settings = {
        "global": {"scrape_interval": "10s", "scrape_timeout": "10s", "evaluation_interval": "2s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [job],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(settings))
    port = free_port()
    command = [
        tools / "prometheus", f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with open(out / "fleet.log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:

        def api(path, **query):
            url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
            try:
                with urllib.request.urlopen(url, timeout=30) as response:
                    return json.load(response)["data"]
            except urllib.error.HTTPError as error:
                raise AssertionError(f"{path} {query}: {error.read().decode()}") from error
            except OSError:
                return None

        def wait_for(what, poll):
            until = time.monotonic() + DEADLINE
            while not (found := poll()):
                assert process.poll() is None, f"Prometheus exited, see {log.name}"
                assert time.monotonic() < until, f"timeout: {what}"
                time.sleep(0.5)
            return found

        def scraped():
            found = api("query", query="count(gpu_bootstrap_gpus)")
            return found and found["result"] and found["result"][0]["value"][1] == str(NODES)

        def fired():
            found = (api("alerts") or {"alerts": []})["alerts"]
            counts = collections.Counter((one["labels"]["alertname"], one["labels"]["instance"]) for one in found)
            repeated = [one for one, count in counts.items() if count > 1]
            assert not repeated, f"more than one alert for a problem: {repeated}"
            return set(counts)

        wait_for("all nodes are scraped", scraped)
        fleet.changed = True
        wait_for("each planted problem fires", lambda: EXPECTED <= fired())
        # All nodes were scraped and all rules evaluated again.
        time.sleep(15)
        assert fired() == EXPECTED, fired() ^ EXPECTED
        dashboard(api)
    finally:
        process.terminate()
        process.wait()
        server.shutdown()


def dashboard(api):
    """Runs the queries of all panels."""
    document = json.loads((monitoring / "dashboard.json").read_text())
    values = collections.defaultdict(list)
    for panel in document["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$gpu", ".*").replace("$instance", ".*")
            began = time.monotonic()
            result = api("query", query=query)["result"]
            seconds = time.monotonic() - began
            assert seconds < 10, f"{panel['title']}: {seconds} s"
            assert result, panel["title"]
            values[panel["title"]] += [(one["metric"].get("instance"), float(one["value"][1])) for one in result]
            if panel["title"] == "Nodes that differ from most nodes with the same GPU":
                assert sorted(one["metric"]["instance"] for one in result) == ["42", "99"], result
    # The time of the query is later than the time of the metrics.
    ages = {instance: age for instance, age in values["Oldest validations"]}
    assert ages.keys() == {str(number) for number in VALIDATED}, ages
    for number, age in VALIDATED.items():
        assert age <= ages[str(number)] < age + 2 * DEADLINE, ages
    [(_, oldest)] = values["Oldest validation"]
    assert VALIDATED[701] <= oldest < VALIDATED[701] + 2 * DEADLINE, oldest
    median, _, longest = (value for _, value in values["Time to ready"])
    assert (median, longest) == (300, 900), values["Time to ready"]


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def report(directory):
    """Compares a directory of documents, and the same documents as a stream."""
    real = json.loads(check("json"))
    checks = directory / "checks"
    checks.mkdir()
    outliers, failed = set(), set()
    for number in range(NODES):
        document = json.loads(json.dumps(real))
        name = f"gpu-{number:04}"
        document["node"]["name"] = name
        document["host"]["instance-id"] = f"i-{number:04}"
        if number in (5, 77):
            document["node"]["driver"] = "570.86.15"
            outliers.add(name)
        if number == 250:
            document["host"]["kernel"] = "6.1.0"
            outliers.add(name)
        if number == 333:
            document["findings"].append({**document["findings"][0], "id": "log.fell-off-bus", "status": "fail", "kind": "fault"})
            failed.add(name)
        (checks / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n")
    (checks / "broken.json").write_text('{"schema": 1, ')
    began = time.monotonic()
    command = [program, "report", "--format", "json"]
    by_directory = subprocess.run([*command, checks], capture_output=True, text=True, timeout=DEADLINE)
    seconds = time.monotonic() - began
    # KiB, the largest of all child processes. A document has about 60 KiB.
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert by_directory.returncode == 4, by_directory.stderr
    fleet = json.loads(by_directory.stdout)
    assert (fleet["documents"], fleet["nodes"]) == (NODES + 1, NODES)
    assert {node for group in fleet["outliers"] for node in group["nodes"]} == outliers
    assert len(fleet["outliers"]) == 2, fleet["outliers"]
    assert [(group["id"], set(group["nodes"])) for group in fleet["failures"]] == [("log.fell-off-bus", failed)]
    assert [one["document"] for one in fleet["unused"]] == ["broken.json"]
    assert seconds < 30, f"{seconds} s"
    stream = "".join(path.read_text() for path in sorted(checks.glob("gpu-*.json")))
    by_stream = subprocess.run([*command, "-"], input=stream, capture_output=True, text=True, timeout=DEADLINE)
    assert by_stream.returncode == 4, by_stream.stderr
    assert json.loads(by_stream.stdout)["outliers"] == fleet["outliers"]
    text = subprocess.run([program, "report", checks], capture_output=True, text=True, timeout=DEADLINE).stdout
    assert all(f"`{name}`" in text for name in outliers | failed), text
    print(f"report: {NODES} documents in {seconds:.1f} s")
    return memory


with tempfile.TemporaryDirectory() as directory:
    memory = report(pathlib.Path(directory))
    assert memory < 100 << 10, f"{memory} KiB"
    alerts(pathlib.Path(directory), rules(pathlib.Path(directory)))
print(f"fleet: {len(EXPECTED)} planted problems of {NODES} nodes fire once, and all panels of the dashboard have values")

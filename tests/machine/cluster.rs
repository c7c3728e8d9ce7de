//! Simulates a cluster with kubeadm and kubectl. Their files and output follow version 1.34.

use gpu_bootstrap::host::{
    Cmd, Output,
    fake::{FakeFiles, failed, ok},
};
use serde_json::{Map, Value, json};

use crate::{
    state::{Pod, State, exists, text},
    units,
};

const KUBELET: &str = "kubelet.service";
const KUBELET_CONF: &str = "/etc/kubernetes/kubelet.conf";
const BOOTSTRAP_CONF: &str = "/etc/kubernetes/bootstrap-kubelet.conf";
const CA: &str = "/etc/kubernetes/pki/ca.crt";
const CERTIFICATE: &str = "/var/lib/kubelet/pki/kubelet-client-current.pem";

/// The files from `kubeadm join` that `kubeadm reset` removes. Directories are kept.
const OF_JOIN: [&str; 6] = [
    KUBELET_CONF,
    BOOTSTRAP_CONF,
    CA,
    "/var/lib/kubelet/config.yaml",
    "/var/lib/kubelet/kubeadm-flags.env",
    "/var/lib/kubelet/pki",
];

/// `kubeadm`.
pub fn kubeadm(cmd: &Cmd, files: &FakeFiles, state: &mut State) -> Output {
    let args: Vec<&str> = cmd.args.iter().map(String::as_str).collect();
    match args[..] {
        ["join", config] if config.starts_with("--config=") => {
            join(files, state, &config["--config=".len()..])
        }
        ["reset", "--force", socket] if socket.starts_with("--cri-socket=") => {
            units::stop(files, KUBELET);
            for path in OF_JOIN {
                files.take(path);
            }
            ok("[reset] Stopping the kubelet service\n")
        }
        _ => panic!("the simulated kubeadm does not support `{}`", cmd.line()),
    }
}

fn join(files: &FakeFiles, state: &mut State, path: &str) -> Output {
    let config = text(files, path).expect("the configuration");
    let config: Value = serde_json::from_str(&config).expect("JSON");
    for path in [KUBELET_CONF, BOOTSTRAP_CONF, CA] {
        if exists(files, path) {
            let id = path.replace('/', "-");
            return failed(
                1,
                format!(
                    "error execution phase preflight: [preflight] Some fatal errors occurred:\n\
                     \t[ERROR FileAvailable-{id}]: {path} already exists\n"
                ),
            );
        }
    }
    let fault = state.faults.join.as_mut().filter(|fault| fault.times > 0);
    if let Some(fault) = fault {
        fault.times -= 1;
        if fault.begun || fault.killed {
            files.put(BOOTSTRAP_CONF, "");
            files.put(CA, "");
        }
        if fault.killed {
            // gpu-bootstrap is killed together with kubeadm.
            files.kill_at(1);
        }
        return failed(1, format!("{}\n", fault.said));
    }
    let server = &config["discovery"]["bootstrapToken"]["apiServerEndpoint"];
    let server = server.as_str().expect("the API server");
    files.put(CA, "");
    files.put("/var/lib/kubelet/config.yaml", "cgroupDriver: systemd\n");
    files.put(
        "/var/lib/kubelet/kubeadm-flags.env",
        "KUBELET_KUBEADM_ARGS=\"\"\n",
    );
    files.put(CERTIFICATE, "");
    files.put(
        KUBELET_CONF,
        format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\nclusters: [{{name: k, \
             cluster: {{server: 'https://{server}'}}}}]\nusers: [{{name: u, user: {{client-certificate: \
             {CERTIFICATE}}}}}]\n"
        ),
    );
    if let Err(why) = units::start(files, state, KUBELET) {
        return failed(1, why);
    }
    let registration = &config["nodeRegistration"];
    let labels = (registration["kubeletExtraArgs"]
        .as_array()
        .into_iter()
        .flatten())
    .filter(|arg| arg["name"] == "node-labels")
    .flat_map(|arg| arg["value"].as_str().expect("text").split(','))
    .map(|label| {
        let (key, value) = label.split_once('=').expect("KEY=VALUE");
        (key.to_owned(), json!(value))
    });
    let labels: Map<String, Value> = labels.collect();
    state.node = Some(json!({
        "metadata": {"name": registration["name"], "labels": labels},
        "spec": {"taints": registration["taints"]},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}],
            "nodeInfo": {"kubeletVersion": "v1.34.4", "containerRuntimeVersion": "containerd://1.6.20"},
        },
    }));
    ok("This node has joined the cluster\n")
}

/// Whether a command line of `kubectl` changes the cluster.
pub fn changes(cmd: &Cmd) -> bool {
    cmd.args.get(2).is_none_or(|verb| verb != "get")
}

/// Merges one document into another, table by table.
fn lay_over(under: &mut Value, over: Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            for (key, value) in over {
                lay_over(under.entry(key).or_insert(Value::Null), value);
            }
        }
        (under, over) => *under = over,
    }
}

/// Applies a JSON merge patch.
fn merge(under: &mut Value, patch: Value) {
    match (under, patch) {
        (Value::Object(under), Value::Object(patch)) => {
            for (key, value) in patch {
                match value {
                    Value::Null => drop(under.shift_remove(&key)),
                    value => merge(under.entry(key).or_insert_with(|| json!({})), value),
                }
            }
        }
        (under, patch) => *under = patch,
    }
}

/// Lists the pods. A terminating pod disappears after some time.
fn pods(state: &mut State) -> Output {
    let is_terminating = |pod: &Pod| pod.object["metadata"]["deletionTimestamp"].is_string();
    state
        .pods
        .retain(|pod| !is_terminating(pod) || pod.lingers > 0);
    for pod in &mut state.pods {
        if is_terminating(pod) {
            pod.lingers -= 1;
        }
    }
    let items: Vec<&Value> = state.pods.iter().map(|pod| &pod.object).collect();
    ok(json!({"items": items}).to_string())
}

/// Evicts the pod with this address.
fn evict(state: &mut State, address: &str) -> Output {
    let is_dry_run = address.ends_with("?dryRun=All");
    let address = address.trim_end_matches("?dryRun=All");
    let name = (address.strip_suffix("/eviction")).and_then(|path| path.rsplit('/').next());
    let name = name.expect("an eviction");
    let Some(pod) = (state.pods.iter_mut()).find(|pod| pod.object["metadata"]["name"] == name)
    else {
        let why = format!("Error from server (NotFound): pods \"{name}\" not found\n");
        return failed(1, why);
    };
    if pod.is_forbidden {
        let why = format!("Error from server (Forbidden): pods \"{name}\" is forbidden\n");
        return failed(1, why);
    }
    if pod.refusals > 0 {
        pod.refusals -= u32::from(!is_dry_run);
        return failed(
            1,
            "Error from server (TooManyRequests): Cannot evict pod as it would violate the pod's disruption budget.\n",
        );
    }
    if !is_dry_run {
        pod.object["metadata"]["deletionTimestamp"] = json!("2026-11-28T00:00:00Z");
    }
    ok("")
}

/// `kubectl`.
pub fn kubectl(cmd: &Cmd, files: &FakeFiles, state: &mut State) -> Output {
    let args: Vec<&str> = cmd.args.iter().map(String::as_str).collect();
    let [kubeconfig, "--request-timeout=10s", own @ ..] = &args[..] else {
        panic!("the simulated kubectl does not support `{}`", cmd.line());
    };
    let kubeconfig = kubeconfig.strip_prefix("--kubeconfig=");
    let kubeconfig = kubeconfig.expect("a kubeconfig");
    assert!(exists(files, kubeconfig), "{kubeconfig} is not there");
    if state.faults.api_server > 0 {
        state.faults.api_server -= 1;
        return failed(
            1,
            "The connection to the server 10.0.0.1:6443 was refused - did you specify the right host or port?\n",
        );
    }
    if own.starts_with(&["get", "--raw=/version"]) {
        return ok(r#"{"gitVersion": "v1.34.4"}"#);
    }
    match own {
        ["get", address, "--"] if address.starts_with("--raw=/api/v1/pods?fieldSelector=") => {
            return pods(state);
        }
        ["create", address, "--filename=-", "--"] => return evict(state, address),
        ["replace", address, "--filename=-", "--"] => {
            let name = (address.strip_suffix("/status")).and_then(|path| path.rsplit('/').next());
            let node = state.node.as_mut().expect("a node");
            assert_eq!(node["metadata"]["name"].as_str(), name);
            let input = cmd.stdin.as_ref().expect("a node").expose();
            let sent: Value = serde_json::from_str(input).expect("JSON");
            node["status"]["conditions"] = sent["status"]["conditions"].clone();
            return ok(sent.to_string());
        }
        _ => {}
    }
    let at = own.iter().position(|word| *word == "--");
    let at = at.expect("names after `--`");
    let (verb, [name, rest @ ..]) = (&own[..at], &own[at + 1..]) else {
        panic!("the simulated kubectl does not support `{}`", cmd.line());
    };
    let is_there = |node: &&mut Value| node["metadata"]["name"] == **name;
    let Some(node) = state.node.as_mut().filter(is_there) else {
        let why = format!("Error from server (NotFound): nodes \"{name}\" not found\n");
        return failed(1, why);
    };
    match (verb, rest) {
        (["get", "node", "--output=json"], []) => {
            let mut shown = node.clone();
            let over = serde_json::to_value(&state.faults.node).expect("JSON");
            lay_over(&mut shown, over);
            ok(shown.to_string())
        }
        (["label", "node", "--overwrite"], pairs) => {
            let labels = node["metadata"]["labels"].as_object_mut().expect("labels");
            for pair in pairs {
                match pair.split_once('=') {
                    Some((key, value)) => drop(labels.insert(key.to_owned(), json!(value))),
                    None => drop(labels.shift_remove(pair.trim_end_matches('-'))),
                }
            }
            ok("node labeled\n")
        }
        (["taint", "node"], removed) => {
            let taints = node["spec"]["taints"].as_array_mut().expect("taints");
            for one in removed {
                let (key, effect) = (one.strip_suffix('-').and_then(|one| one.split_once(':')))
                    .expect("the simulated kubectl only removes taints: KEY:EFFECT-");
                let before = taints.len();
                taints.retain(|taint| taint["key"] != key || taint["effect"] != effect);
                if taints.len() == before {
                    return failed(1, format!("error: taint \"{key}:{effect}\" not found\n"));
                }
            }
            ok("node untainted\n")
        }
        (["patch", "node", "--type=merge", patch], []) => {
            let patch = patch.strip_prefix("--patch=").expect("a patch");
            merge(node, serde_json::from_str(patch).expect("JSON"));
            ok("node patched\n")
        }
        (["delete", "node", "--ignore-not-found"], []) => {
            state.node = None;
            ok("node deleted\n")
        }
        _ => panic!("the simulated kubectl does not support `{}`", cmd.line()),
    }
}

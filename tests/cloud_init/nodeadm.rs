//! The results of the real nodeadm for the EKS user data, recorded by `tests/nodeadm/record.sh`. The case `eks-karpenter` of
//! `tests/vm` compares the fake nodeadm with the same results.

use std::{
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use gpu_bootstrap::{joins::nodeadm, model::kubernetes::Labels};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const TAINTS: &str = "
  kubelet:
    config:
      registerWithTaints:
      - {key: nvidia.com/gpu, value: present, effect: NoSchedule}";

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Recorded {
    /// The version of the Go module.
    nodeadm: String,
    /// The NodeConfigs of the user data.
    asked: Vec<Value>,
    answer: Answer,
}

/// The format written by `tests/nodeadm/answers.go`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Answer {
    spec: Value,
    #[serde(default)]
    drop_in: Option<Value>,
    last_arguments: String,
    cluster_dns: Value,
    kubeconfig: String,
}

fn below_root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The user data, with our configuration appended as another part, because the available nodeadm version does not support the
/// drop-in directory. It merges both in the same way.
fn user_data() -> Vec<(&'static str, String)> {
    let mut form = super::text("eks/user-data.mime");
    for (place, value) in [
        ("@NAME@", "test"),
        ("@https://SERVER@", "https://10.0.0.1:6443"),
        ("@BASE64@", "Y2VydGlmaWNhdGU="),
        ("@10.100.0.0/16@", "10.100.0.0/16"),
    ] {
        assert!(form.contains(place), "{place}");
        form = form.replace(place, value);
    }
    let cidr = "cidr: \"10.100.0.0/16\"";
    let with_taints = form.replace(cidr, &format!("{cidr}{TAINTS}"));
    let karpenter = fs::read_to_string(below_root("tests/vm/user-data/eks-karpenter.mime"));
    let labels = Labels::from([
        ("nvidia.com/gpu.present".to_owned(), "true".to_owned()),
        ("pool".to_owned(), "gpu".to_owned()),
    ]);
    let ours = nodeadm::configuration(&labels);
    [
        ("eks", form),
        ("eks-with-taints", with_taints),
        ("karpenter", karpenter.expect("the user data of the case")),
    ]
    .map(|(name, text)| {
        let mark = format!("--{}", boundary(&text));
        let (parts, _) = text.rsplit_once(&format!("{mark}--")).expect("an end");
        let part = format!("{mark}\nContent-Type: application/node.eks.aws\n\n{ours}\n{mark}--\n");
        (name, parts.to_owned() + &part)
    })
    .into()
}

fn boundary(text: &str) -> &str {
    let (_, rest) = text.split_once("boundary=\"").expect("a boundary");
    rest.split_once('"').expect("its end").0
}

/// The NodeConfigs in the user data, in order.
fn node_configs(text: &str) -> Vec<Value> {
    let mark = format!("\n--{}", boundary(text));
    let header = "\nContent-Type: application/node.eks.aws\n\n";
    (text.split(&mark))
        .filter_map(|part| part.strip_prefix(header))
        .map(|part| serde_saphyr::from_str(part).expect("YAML"))
        .collect()
}

fn file(name: &str) -> PathBuf {
    below_root("tests/vm/image-files/eks/usr/lib/stand-in/real").join(format!("{name}.json"))
}

/// Runs the real program in a separate root directory.
fn asked(root: &Path, user_data: &str) -> Answer {
    let directory = super::directory();
    let copied = Command::new("cp")
        .args(["-a", &format!("{}/.", root.display())])
        .arg(directory.path())
        .status();
    assert!(copied.expect("cp").success());
    let mut program = Command::new("unshare")
        .args(["--map-root-user", "--root"])
        .arg(directory.path())
        .arg("/bin/answers")
        .env("PATH", "/bin:/usr/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare");
    let mut input = program.stdin.take().expect("its input");
    input.write_all(user_data.as_bytes()).expect("written");
    drop(input);
    let output = program.wait_with_output().expect("its end");
    assert!(output.status.success(), "{}", output.status);
    serde_json::from_slice(&output.stdout).expect("an answer")
}

/// Records the results of the real program if `NODEADM` is set to its root directory.
fn record() {
    let Some(root) = env::var_os("NODEADM") else {
        return;
    };
    for (name, text) in user_data() {
        let recorded = Recorded {
            nodeadm: env::var("NODEADM_VERSION").expect("its version"),
            asked: node_configs(&text),
            answer: asked(Path::new(&root), &text),
        };
        let text = serde_json::to_string_pretty(&recorded).expect("JSON") + "\n";
        fs::create_dir_all(file(name).parent().expect("a folder")).expect("made");
        fs::write(file(name), text).expect("written");
    }
}

/// Removes empty tables, because the real program writes them for missing values.
fn without_empty(value: &Value) -> Value {
    let Value::Object(table) = value else {
        return value.clone();
    };
    let full = table.iter().map(|(key, one)| (key, without_empty(one)));
    full.filter(|(_, one)| *one != json!({}))
        .map(|(key, one)| (key.clone(), one))
        .collect()
}

/// Merges specs: later values override earlier ones, but flags are appended.
fn merged(specs: &[Value]) -> Value {
    fn into(old: &mut Value, new: &Value, is_flags: bool) {
        match (old, new) {
            (Value::Object(old), Value::Object(new)) => {
                for (key, value) in new {
                    into(old.entry(key).or_insert(Value::Null), value, key == "flags");
                }
            }
            (Value::Array(old), Value::Array(new)) if is_flags => old.extend(new.iter().cloned()),
            (old, new) => *old = new.clone(),
        }
    }
    let mut all = json!({});
    for spec in specs {
        into(&mut all, spec, false);
    }
    all
}

/// Cluster, taints and flags of the user data reach the kubelet, together with the labels that gpu-bootstrap adds.
#[test]
fn real_nodeadm_interprets_eks_user_data_as_intended() {
    record();
    for (name, text) in user_data() {
        let kept = fs::read_to_string(file(name)).expect("an answer");
        let kept: Recorded = serde_json::from_str(&kept).expect("JSON");
        assert_eq!(
            kept.asked,
            node_configs(&text),
            "no recording for this input: run tests/nodeadm/record.sh"
        );
        let specs: Vec<Value> = kept.asked.iter().map(|one| one["spec"].clone()).collect();
        let spec = without_empty(&merged(&specs));
        assert_eq!(without_empty(&kept.answer.spec), spec, "{name}");

        let flags = spec["kubelet"]["flags"].as_array().expect("flags");
        let flags: Vec<&str> = flags.iter().filter_map(Value::as_str).collect();
        assert_eq!(kept.answer.last_arguments, flags.join(" "), "{name}");
        assert!(flags.last().is_some_and(|one| one.contains("pool=gpu")));
        // A flag would replace the whole list of taints.
        assert!(
            !kept.answer.last_arguments.contains("register-with-taints"),
            "{name}"
        );

        let taints = &spec["kubelet"]["config"]["registerWithTaints"];
        let drop_in = kept.answer.drop_in.unwrap_or_default();
        assert_eq!(&drop_in["registerWithTaints"], taints, "{name}");
        assert_eq!(taints.is_array(), name != "eks", "{name}");
        assert_eq!(kept.answer.cluster_dns, json!(["10.100.0.10"]), "{name}");
        let server = spec["cluster"]["apiServerEndpoint"]
            .as_str()
            .expect("a server");
        assert!(kept.answer.kubeconfig.contains(server), "{name}");
    }
}

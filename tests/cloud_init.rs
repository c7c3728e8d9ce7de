//! The files of `cloud-init/`: each fits the limits of its clouds, parses, and has settings that the program accepts.

use std::{fs, path::Path};

use gpu_bootstrap::config::file::Config;
use serde_json::Value;

/// The smallest limit of the clouds: AWS takes 16 KiB of user data. Google Cloud takes 256 KiB, Azure 64 KiB.
const LARGEST: usize = 16 * 1024;

const USER_DATA: [&str; 4] = [
    "bare/user-data.yaml",
    "kubeadm/user-data.yaml",
    "k3s/user-data.yaml",
    "eks/user-data.mime",
];

fn text(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("cloud-init")
        .join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What stands between @ signs, as a user fills it in.
fn filled(text: &str) -> String {
    let mut filled = String::new();
    for (index, part) in text.split('@').enumerate() {
        if index % 2 == 0 {
            filled.push_str(part);
            continue;
        }
        filled.push_str(match part {
            "sha256:DIGEST" => {
                "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
            }
            "TOKEN" => "abcdef.0123456789abcdef",
            other => other,
        });
    }
    filled
}

/// The documents in YAML of a file, which are its parts if it is MIME.
fn documents(path: &str) -> Vec<Value> {
    let text = filled(&text(path));
    let parts: Vec<&str> = match text.starts_with("MIME-Version") {
        true => (text.split("\n--gpu-bootstrap").skip(1))
            .filter_map(|part| part.split_once("\n\n").map(|(_, body)| body))
            .filter(|body| !body.starts_with("#!"))
            .collect(),
        false => text.split("\n---\n").collect(),
    };
    (parts.iter())
        .map(|part| {
            serde_saphyr::from_str(part).unwrap_or_else(|error| panic!("{path}: {error}\n{part}"))
        })
        .collect()
}

#[test]
fn user_data_fits_the_limits_of_the_clouds() {
    for path in USER_DATA {
        let size = text(path).len();
        assert!(size <= LARGEST, "{path} has {size} bytes");
    }
}

#[test]
fn settings_are_accepted_and_secrets_are_for_root_alone() {
    let mut files = 0;
    for path in USER_DATA {
        for document in documents(path) {
            let written = document["write_files"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            for file in &written {
                files += 1;
                let name = file["path"].as_str().expect("a path");
                let content = file["content"].as_str().expect("a content");
                if name.ends_with(".toml") {
                    toml::from_str::<Config>(content)
                        .unwrap_or_else(|error| panic!("{path}: {error}"));
                } else {
                    assert_eq!(file["permissions"], "0600", "{path}: {name}");
                }
            }
        }
    }
    assert_eq!(files, 6);
}

#[test]
fn the_manifest_has_settings_that_are_accepted() {
    let documents = documents("daemonset/daemonset.yaml");
    let kinds: Vec<&str> = (documents.iter())
        .map(|document| document["kind"].as_str().expect("a kind"))
        .collect();
    assert_eq!(
        kinds,
        [
            "Namespace",
            "ServiceAccount",
            "ClusterRole",
            "ClusterRoleBinding",
            "ConfigMap",
            "DaemonSet"
        ]
    );
    let settings = documents[4]["data"]["50-daemonset.toml"]
        .as_str()
        .expect("settings");
    toml::from_str::<Config>(settings).expect("settings");
}

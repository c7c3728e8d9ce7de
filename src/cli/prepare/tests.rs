//! Tests for the parts of a request that the journal keeps.

use super::*;
use crate::{
    host::fake,
    journal::{Journal, Record},
};

#[test]
fn the_environment_proxy_survives_a_reboot() {
    let (host, fakes) = fake::host();
    let env: BTreeMap<String, String> = [
        ("https_proxy", "http://joe:s3cret@proxy:3128"),
        ("no_proxy", "localhost,.internal"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    let read = || SettingSources::read(&*host.files, &*host.files, &[], &env, &[]).unwrap();
    let set = used_network(&env, &read().provenance());
    let (open, credentials) = parted(set, &Secrets::default());
    assert_eq!(open, ["packages.no-proxy=localhost,.internal"]);
    assert_eq!(
        credentials[0].expose(),
        "packages.proxy=http://joe:s3cret@proxy:3128"
    );
    assert_eq!(
        read().merged().unwrap().packages.no_proxy.as_deref(),
        Some("localhost,.internal")
    );
    // The configuration takes precedence.
    let own = "[packages]\nproxy = \"http://other:8080\"\n";
    fakes.files.put("/etc/gpu-bootstrap/config.toml", own);
    assert_eq!(
        used_network(&env, &read().provenance()),
        ["packages.no-proxy=localhost,.internal"]
    );
    let proxy = read().merged().unwrap().packages.proxy.unwrap();
    assert_eq!(proxy.expose(), "http://other:8080");
}

#[test]
fn secrets_in_tables_survive_a_reboot_outside_the_journal() {
    let token = "abcdef.0123456789";
    let secret = [
        format!("cluster={{name=\"c\", token=\"{token}\"}}"),
        format!("cluster={{nodes=[{{join.token=\"{token}\"}}]}}"),
        format!("node.label=x-{token}"),
    ];
    for setting in secret {
        let secrets = Secrets::default();
        secrets.learn(&Secret::new(token));
        let open = "driver.branch=580".to_owned();
        let (set, credentials) = parted(vec![setting.clone(), open.clone()], &secrets);
        assert_eq!(set, std::slice::from_ref(&open));
        let request = Request {
            set,
            credentials,
            ..Request::default()
        };

        let (host, fakes) = fake::host();
        fakes.files.put_directory("/var/lib", 0o755);
        let (journal, _) = Journal::open(&host, "run", &secrets).unwrap();
        journal.keep_credentials(&request.credentials).unwrap();
        let record = Record::RunStarted {
            tool: "0.0.0".to_owned(),
            mode: "install".to_owned(),
            instance_id: None,
            boot_id: None,
            request,
            policy: None,
            assessed_seconds: None,
        };
        journal.append(record).unwrap();
        let text = fakes.files.text("/var/lib/gpu-bootstrap/journal.jsonl");
        assert!(!text.contains(token), "{text}");

        let request = engine::request(&host).unwrap().unwrap();
        assert_eq!(settings(&request), [open, setting]);
    }
}

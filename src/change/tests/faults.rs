//! What is told when something fails, and what is given up when somebody asks to stop.

use std::sync::Arc;

use async_trait::async_trait;
use nix::errno::Errno;
use tokio_util::sync::CancellationToken;

use super::{
    archive::{Archive, Offered},
    kit::{Bed, STATE, policy},
};
use crate::{
    change::{Applier, Change, Probe, STOPPED},
    config::desired::{PackageWish, Repository, RuntimeKind},
    error::{Report, causes},
    host::{
        ExecError, Http, HttpError,
        fake::{Damage, failed, ok},
    },
    model::secret::Secret,
};

fn install(name: &str) -> Change {
    Change::InstallPackages {
        packages: vec![PackageWish {
            name: name.into(),
            version: None,
        }],
        removing: vec![],
    }
}

fn offering(name: &'static str) -> (Bed, Archive) {
    let bed = Bed::new();
    let apt = Archive::on(&bed);
    apt.offer(name, Offered::new("1", &[]));
    (bed, apt)
}

#[tokio::test]
async fn the_output_of_apt_never_shows_the_proxy_password() {
    let bed = Bed::new();
    let mut policy = policy();
    policy.proxy = Some(Secret::new("http://joe:s3cret@proxy:3128"));
    let applier = Applier::new(bed.host.clone(), policy, STATE.into());
    bed.fakes.exec.on_result("apt-get", |cmd, _| {
        let words = "E: http://joe:s3cret@proxy:3128 said nothing".to_owned();
        if cmd.args.iter().any(|arg| arg == "-s") {
            return Ok(crate::host::Output {
                stdout: words.clone(),
                ..failed(100, words)
            });
        }
        Err(ExecError::Silent {
            command: cmd.line(),
            after: cmd.deadline,
            tail: words,
        })
    });
    bed.fakes.exec.on("apt-cache", |_, _| {
        ok("a:\n  Installed: (none)\n  Candidate: 1\n  Version table:\n     1 500\n        500 http://x y Packages\n")
    });
    bed.fakes.files.put("/var/lib/dpkg/status", "");
    for (change, told) in [
        (Change::RefreshRepositories, "printed nothing"),
        (install("a"), "simulate"),
    ] {
        let undo = applier.capture(&change).await.unwrap();
        let error = applier.apply(&change, undo, &bed.heard).await.unwrap_err();
        let words: Vec<String> = std::iter::once(error.to_string())
            .chain(causes(&error))
            .collect();
        let words = words.join("\n");
        assert!(
            words.contains(told) && words.contains("said nothing"),
            "{words}"
        );
        assert!(!words.contains("s3cret"), "{words}");
    }
}

#[tokio::test]
async fn an_error_of_the_diagnosis_does_not_hide_the_first_error() {
    let (bed, apt) = offering("a");
    // The sources cannot be read to say which of them contradict each other.
    bed.fakes
        .files
        .put("/etc/apt/sources.list", "deb http://a x main\n");
    (bed.fakes.files).damage("/etc/apt/sources.list", Damage::Reads, Errno::EIO);
    let conflict = "E: Conflicting values set for option Signed-By regarding source https://x/ /";
    *apt.faults.lock().unwrap() = vec![conflict];
    let error = bed.apply(&Change::RefreshRepositories).await.unwrap_err();
    assert_eq!(error.reason(), "repository-conflict");
    let words = error.to_string();
    assert!(
        words.contains("Conflicting values") && words.contains("`/etc/apt/sources.list`"),
        "{words}"
    );
    // The same where it is only asked.
    bed.fakes
        .exec
        .on("apt-get", move |_, _| failed(100, conflict));
    let error = bed.apply(&install("a")).await.unwrap_err();
    assert_eq!(error.reason(), "repository-conflict");
    assert!(error.to_string().contains("`/etc/apt/sources.list`"));
}

#[tokio::test]
async fn a_failed_refresh_of_the_lists_has_its_own_error() {
    let (bed, apt) = offering("a");
    // The last is said first.
    *apt.faults.lock().unwrap() = vec![
        "E: You don't have enough free space in /var/lib/apt/lists/.",
        "E: Failed to fetch http://x/a.deb  404  Not Found",
    ];
    let error = bed.apply(&install("a")).await.unwrap_err();
    assert_eq!(error.reason(), "no-disk-space");
    assert!(bed.heard.text().contains("retry: download packages"));
}

#[tokio::test]
async fn an_undo_stopped_during_a_wait_reports_the_stop() {
    let (bed, apt) = offering("a");
    apt.have("a", "1");
    apt.write(&bed.fakes.files);
    let removal = Change::InstallPackages {
        packages: vec![],
        removing: vec!["a".into()],
    };
    let undo = bed.apply(&removal).await.unwrap();
    *apt.faults.lock().unwrap() = vec!["E: Could not get lock /var/lib/dpkg/lock-frontend."];
    let stop = CancellationToken::new();
    stop.cancel();
    let applier = bed.restarted().stopped_by(stop);
    let error = applier.revert(&undo, &bed.heard).await.unwrap_err();
    assert_eq!(error.reason(), STOPPED);
    bed.revert(&undo).await;
    assert!(apt.installed.lock().unwrap().contains_key("a"));
}

#[tokio::test]
async fn a_stop_ends_the_retries_of_a_registry() {
    let bed = Bed::new();
    bed.fakes
        .exec
        .on("docker", |cmd, _| match cmd.args[0].as_str() {
            "image" => failed(1, "Error: No such image: x"),
            _ => failed(1, "net/http: TLS handshake timeout"),
        });
    let stop = CancellationToken::new();
    stop.cancel();
    let applier = bed.restarted().stopped_by(stop);
    let change = Change::RunProbe {
        probe: Probe::ContainerSeesGpus {
            runtime: RuntimeKind::Docker,
            image: Some("x".into()),
            gpus: 1,
            driver: "1.2".into(),
            timeout_seconds: 60,
        },
        record: "/var/lib/gpu-bootstrap/proof".into(),
        inputs: String::new(),
    };
    let undo = applier.capture(&change).await.unwrap();
    let error = applier.apply(&change, undo, &bed.heard).await.unwrap_err();
    assert_eq!(error.reason(), STOPPED);
    assert!(bed.fakes.clock.slept().is_empty());
}

/// A server that takes connections and says nothing.
struct Hangs;

#[async_trait]
impl Http for Hangs {
    async fn get(&self, _: &str, _: u64) -> Result<Vec<u8>, HttpError> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_stop_ends_the_download_of_a_key() {
    let bed = Bed::new();
    let mut host = bed.host.clone();
    host.http = Arc::new(Hangs);
    let stop = CancellationToken::new();
    let applier = Applier::new(host, policy(), STATE.into()).stopped_by(stop.clone());
    let change = Change::AddRepository {
        repository: Repository {
            name: "toolkit".into(),
            url: "https://example.org/deb/".into(),
            suites: vec!["/".into()],
            components: vec![],
            architectures: vec!["amd64".into()],
            key_url: Some("https://example.org/key".into()),
            fingerprints: vec!["AA".repeat(20)],
            keyring: None,
            priority: None,
        },
    };
    let undo = applier.capture(&change).await.unwrap();
    let (ended, ()) = tokio::join!(applier.apply(&change, undo, &bed.heard), async {
        stop.cancel();
    });
    assert_eq!(ended.unwrap_err().reason(), STOPPED);
    // It refuses nothing: whoever rehearses has heard of the stop as well.
    applier.rehearse(&change).await.unwrap();
}

#[tokio::test]
async fn a_machine_that_changes_after_the_simulation_loses_no_package() {
    // Between the simulation and the real transaction the package comes to conflict with another.
    let (bed, apt) = offering("a");
    apt.have("podman", "4");
    apt.write(&bed.fakes.files);
    let moved = Offered {
        conflicts: &["podman"],
        ..Offered::new("1", &[])
    };
    *apt.moves.lock().unwrap() = vec![("a", moved)];
    let error = bed.apply(&install("a")).await.unwrap_err();
    // apt refused it, and what it would do now is not agreed to.
    assert!(bed.heard.text().contains("remove is disabled"));
    assert_eq!(error.reason(), "transaction-refused");
    assert!(error.to_string().contains("would remove podman"), "{error}");
    let installed = apt.installed.lock().unwrap();
    assert!(installed.contains_key("podman") && !installed.contains_key("a"));
}

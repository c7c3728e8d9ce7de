//! Tests the download of package lists: how long it is retried for each kind of network error, truncated lists, and proxies.

use std::time::Duration;

use camino::Utf8Path;

use super::{archive::Archive, kit::TestMachine};
use crate::{change::Change, error::Report, host::fake::failed};

const SILENT: &str = "E: Failed to fetch http://x/InRelease  Temporary failure resolving 'x'";

/// Downloads the lists. Each attempt fails after these seconds. Returns the number of attempts and the reason of the error.
async fn attempts(seconds: u64, words: &'static str) -> (usize, &'static str) {
    attempts_after(None, seconds, words).await
}

/// The same, but the first attempt fails with another error.
async fn attempts_after(
    mut first: Option<&'static str>,
    seconds: u64,
    words: &'static str,
) -> (usize, &'static str) {
    let machine = TestMachine::new();
    Archive::on(&machine);
    let clock = machine.fakes.clock.clone();
    machine.fakes.exec.on("apt-get", move |_, _| {
        clock.advance(Duration::from_secs(seconds));
        failed(100, first.take().unwrap_or(words))
    });
    let error = machine.fails(&Change::RefreshRepositories).await;
    let lines = machine.fakes.exec.lines();
    let updates = lines.iter().filter(|line| line.ends_with("update"));
    (updates.count(), error.reason())
}

#[tokio::test]
async fn refused_connection_is_retried_longer_than_a_timeout() {
    let refused = "E: Failed to fetch http://x/InRelease  Could not connect to x (1.2.3.4), \
                   connection refused";
    assert_eq!(attempts(1, refused).await, (4, "network"));
    assert_eq!(attempts(150, SILENT).await, (2, "network"));
    // A mirror that is being synced responds, so the time limit does not apply.
    let stale = "E: Failed to fetch http://x/Packages  File has unexpected size (1 != 2). Mirror \
                 sync in progress?";
    assert_eq!(attempts(150, stale).await, (4, "repository-stale"));
}

#[tokio::test]
async fn only_connection_time_counts_for_giving_up() {
    // A single slow attempt is always retried, even if it took longer than the time limit.
    assert_eq!(attempts(200, SILENT).await, (2, "network"));
    // After exactly the time limit, there is another attempt.
    assert_eq!(attempts(90, SILENT).await, (3, "network"));
    // An attempt that another package manager blocked does not count for the time limit.
    let locked = "E: Could not get lock /var/lib/apt/lists/lock.";
    assert_eq!(
        attempts_after(Some(locked), 100, SILENT).await,
        (3, "network")
    );
}

#[tokio::test]
async fn truncated_lists_are_downloaded_again() {
    let machine = TestMachine::new();
    Archive::on(&machine);
    let lists = "/var/lib/apt/lists";
    let index = "SHA256:\n aa 10 main/binary-amd64/Packages\n aa 10 non-free/Packages\n \
                 aa 0 contrib/Packages\n-----END PGP SIGNATURE-----\n";
    for (name, text) in [
        ("lock", ""),
        ("x_Packages", ""),
        ("y_InRelease", index),
        ("y_contrib_Packages", ""),
        ("y_main_binary-amd64_Packages", "Package: y"),
        ("y_non-free_Packages", "Package:"),
        ("z_InRelease", "Origin: z\n"),
    ] {
        machine.fakes.files.put(&format!("{lists}/{name}"), text);
    }
    (machine.fakes.files).put_directory(&format!("{lists}/partial"), 0o700);
    machine.apply(&Change::RefreshRepositories).await.unwrap();
    let left = machine.host.files.list(Utf8Path::new(lists)).unwrap();
    assert_eq!(
        left,
        [
            "lock",
            "partial",
            "y_InRelease",
            "y_contrib_Packages",
            "y_main_binary-amd64_Packages"
        ]
    );
}

/// The error only mentions the server, but a proxy in the package manager's own configuration takes precedence over
/// `packages.proxy`.
#[tokio::test]
async fn configured_proxy_is_reported_for_network_errors() {
    let machine = TestMachine::new();
    let apt = Archive::on(&machine);
    let settings = "/etc/apt/apt.conf.d/90proxy";
    let line = "Acquire::http::Proxy \"http://proxy.example.org:3128\";";
    (machine.fakes.files).put(settings, line);
    apt.events().faults = vec![SILENT; 10];
    let error = machine.fails(&Change::RefreshRepositories).await;
    let hint = error.hint().unwrap_or_default();
    assert_eq!(error.reason(), "network");
    assert!(
        hint.contains(settings) && hint.contains("; otherwise "),
        "{hint}"
    );
}

//! How long package lists are tried for, by what is wrong with the line.

use std::time::Duration;

use camino::Utf8Path;

use super::{archive::Archive, kit::Bed};
use crate::{change::Change, error::Report, host::fake::failed};

const SILENT: &str = "E: Failed to fetch http://x/InRelease  Temporary failure resolving 'x'";

/// Fetches lists that always fail, each attempt after some seconds; gives the attempts and what
/// is said in the end.
async fn attempts(seconds: u64, words: &'static str) -> (usize, &'static str) {
    attempts_after(None, seconds, words).await
}

/// The same, where the first attempt fails in its own way.
async fn attempts_after(
    mut first: Option<&'static str>,
    seconds: u64,
    words: &'static str,
) -> (usize, &'static str) {
    let bed = Bed::new();
    Archive::on(&bed);
    let clock = bed.fakes.clock.clone();
    bed.fakes.exec.on("apt-get", move |_, _| {
        clock.advance(Duration::from_secs(seconds));
        failed(100, first.take().unwrap_or(words))
    });
    let error = bed.apply(&Change::RefreshRepositories).await.unwrap_err();
    let lines = bed.fakes.exec.lines();
    let updates = lines.iter().filter(|line| line.ends_with("update"));
    (updates.count(), error.reason())
}

#[tokio::test]
async fn a_refused_connection_is_retried_longer_than_a_silent_one() {
    let refused = "E: Failed to fetch http://x/InRelease  Could not connect to x (1.2.3.4), \
                   connection refused";
    assert_eq!(attempts(1, refused).await, (4, "network"));
    assert_eq!(attempts(150, SILENT).await, (2, "network"));
    // A mirror in the middle of its sync has answered all the time.
    let stale = "E: Failed to fetch http://x/Packages  File has unexpected size (1 != 2). Mirror \
                 sync in progress?";
    assert_eq!(attempts(150, stale).await, (4, "repository-stale"));
}

#[tokio::test]
async fn only_the_time_of_the_connection_itself_counts_for_giving_up() {
    // One attempt that took too long says nothing about the next one.
    assert_eq!(attempts(200, SILENT).await, (2, "network"));
    // Another package manager had its time; the line has said nothing yet.
    let locked = "E: Could not get lock /var/lib/apt/lists/lock.";
    assert_eq!(
        attempts_after(Some(locked), 100, SILENT).await,
        (3, "network")
    );
}

#[tokio::test]
async fn lists_damaged_by_a_power_cut_are_downloaded_again() {
    let bed = Bed::new();
    Archive::on(&bed);
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
        bed.fakes.files.put(&format!("{lists}/{name}"), text);
    }
    bed.fakes
        .files
        .put_folder(&format!("{lists}/partial"), 0o700);
    bed.apply(&Change::RefreshRepositories).await.unwrap();
    let left = bed.host.files.list(Utf8Path::new(lists)).unwrap();
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

//! How long package lists are tried for, by what is wrong with the line.

use std::time::Duration;

use super::{apt::Apt, kit::Bed};
use crate::{change::Change, error::Report, host::fake::failed};

/// Fetches lists that always fail, each attempt after some seconds; gives the attempts and what
/// is said in the end.
async fn attempts(seconds: u64, words: &'static str) -> (usize, &'static str) {
    let bed = Bed::new();
    Apt::on(&bed);
    let clock = bed.fakes.clock.clone();
    bed.fakes.exec.on("apt-get", move |_, _| {
        clock.advance(Duration::from_secs(seconds));
        failed(100, words)
    });
    let error = bed.apply(&Change::RefreshRepositories).await.unwrap_err();
    let lines = bed.fakes.exec.lines();
    let updates = lines.iter().filter(|line| line.ends_with("update"));
    (updates.count(), error.reason())
}

#[tokio::test]
async fn a_line_that_says_no_at_once_is_tried_longer_than_one_that_says_nothing() {
    let refused = "E: Failed to fetch http://x/InRelease  Could not connect to x (1.2.3.4), \
                   connection refused";
    assert_eq!(attempts(1, refused).await, (4, "network"));
    let silent = "E: Failed to fetch http://x/InRelease  Temporary failure resolving 'x'";
    assert_eq!(attempts(150, silent).await, (2, "network"));
    // A mirror in the middle of its sync has answered all the time.
    let stale = "E: Failed to fetch http://x/Packages  File has unexpected size (1 != 2). Mirror \
                 sync in progress?";
    assert_eq!(attempts(150, stale).await, (4, "repository-stale"));
}

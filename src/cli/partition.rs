//! `partition-gpus`: sets and verifies the MIG layouts of GPUs. The unit of `driver.mig` runs this command at each boot, before
//! container runtimes and the kubelet start. It needs no journal, because the change that created the unit recorded the undo.

use std::sync::{Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

use super::{
    Failure,
    env::{Console, Env},
};
use crate::{
    change::{Partition, Partitioned, Sink, partition},
    exit::Exit,
    host::Host,
    model::paths::STATE,
    work::Hands,
};

/// Collects the output of commands, which is printed if the command fails, and notes.
#[derive(Default)]
struct Lines(Mutex<Vec<String>>);

impl Sink for Lines {
    fn line(&self, line: &str) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.push(line.to_owned());
    }

    fn progress(&self, _: u64, _: Option<u64>, _: &str) {}

    fn retry(&self, message: &str, _: f64) {
        self.line(message);
    }
}

pub(super) async fn run(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    wanted: &Partition,
) -> Result<Exit, Failure> {
    env.only_root(host, "partition the GPUs")?;
    let hands = Hands {
        host: host.clone(),
        state: STATE.into(),
        stop: CancellationToken::new(),
        secrets: env.secrets.clone(),
    };
    let lines = Lines::default();
    let result = partition(&hands, wanted, &lines).await;
    for line in lines.0.into_inner().unwrap_or_else(PoisonError::into_inner) {
        console.note(&line);
    }
    match result? {
        Partitioned::Done => {
            console.note(&format!("the GPUs have the MIG layout {wanted}"));
            Ok(Exit::Ok)
        }
        Partitioned::AfterReboot(gpus) => {
            let names: Vec<String> = gpus.iter().map(ToString::to_string).collect();
            Err(Failure::new(
                Exit::RebootRequired,
                "mig-reboot",
                &format!(
                    "failed to change the MIG mode of {}: this machine cannot reset its GPUs",
                    names.join(", ")
                ),
                Some("run `systemctl reboot`"),
            ))
        }
    }
}

//! CUDA's driver API, called in child processes: a sick GPU can make a call hang for ever, and MIG
//! devices are seen one by one only, each by a process of its own.
//!
//! A child prints each call before it starts. So the parent knows which call hangs, and ends the
//! child after the time that the call may take.

mod calls;
mod ffi;
mod work;

use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

pub use self::calls::Patience;

use self::calls::Calls;
use self::ffi::{Cuda, Tracer, Tried};
use super::ourselves::Ourselves;
use crate::host::exec::{Status, Stream, tail};
use crate::host::{
    CudaCause, CudaDevice, CudaFault, CudaPeer, CudaStart, CudaView, CudaWork, Exec, ExecError,
};

/// The hidden subcommand of the children.
pub const CUDA_WORK: &str = "cuda-work";

/// The name that the driver's packages install on every distribution.
const LIBRARY: &str = "libcuda.so.1";

/// Begins the line with a child's answer.
const ANSWER: char = '=';

/// What a child does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CudaTask {
    /// Lists the devices.
    Start,
    /// Computes on the device with this UUID.
    Compute(String),
    /// Copies between the GPUs with these UUIDs.
    Peers(Vec<String>),
}

impl CudaTask {
    fn args(&self) -> Vec<String> {
        let mut args = vec![CUDA_WORK.to_owned()];
        match self {
            Self::Start => args.push("start".to_owned()),
            Self::Compute(uuid) => args.extend(["compute".to_owned(), uuid.clone()]),
            Self::Peers(uuids) => {
                args.push("peers".to_owned());
                args.extend(uuids.iter().cloned());
            }
        }
        args
    }

    /// The task of a command line.
    #[must_use]
    pub fn of(word: &str, uuids: &[String]) -> Option<Self> {
        match (word, uuids) {
            ("start", []) => Some(Self::Start),
            ("compute", [uuid]) => Some(Self::Compute(uuid.clone())),
            ("peers", [_, ..]) => Some(Self::Peers(uuids.to_vec())),
            _ => None,
        }
    }
}

/// Does the task in this process, and prints the calls and the answer. It may hang or crash: only the
/// children behind [`super::RealGpu`] call it.
///
/// # Errors
/// When the answer cannot be printed.
pub fn cuda_work(task: &CudaTask, out: &mut (dyn Write + Send)) -> std::io::Result<()> {
    let printed = Printed(Mutex::new(out));
    let answer = {
        let work = || {
            let cuda = Cuda::open(Path::new(LIBRARY), &printed)?;
            let json = |answer: Result<serde_json::Value, serde_json::Error>| {
                answer.map_err(|error| {
                    CudaFault::new(CudaCause::Failed {
                        why: error.to_string(),
                    })
                })
            };
            match task {
                CudaTask::Start => json(serde_json::to_value(work::start(&cuda)?)),
                CudaTask::Compute(uuid) => json(serde_json::to_value(work::compute(&cuda, uuid)?)),
                CudaTask::Peers(uuids) => {
                    let about = |devices: &[&str]| printed.about(devices);
                    json(serde_json::to_value(work::peers(&cuda, uuids, &about)?))
                }
            }
        };
        work()
    };
    let line = serde_json::to_string(&Answer(answer))?;
    let mut out = printed.0.lock().unwrap_or_else(PoisonError::into_inner);
    writeln!(out, "{ANSWER}{line}")?;
    out.flush()
}

/// A child's answer as it is printed.
#[derive(Serialize)]
struct Answer<T>(Tried<T>);

/// Prints the calls.
struct Printed<'o>(Mutex<&'o mut (dyn Write + Send)>);

impl Printed<'_> {
    fn line(&self, kind: char, rest: &str) {
        let thread = format!("{:?}", std::thread::current().id());
        let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Without a reader the parent is gone, and with it who would be told of the call.
        let _ = writeln!(out, "{kind}{thread} {rest}").and_then(|()| out.flush());
    }

    fn about(&self, devices: &[&str]) {
        self.line(calls::ABOUT, &devices.join(" "));
    }
}

impl Tracer for Printed<'_> {
    fn begins(&self, call: &str) {
        self.line(calls::BEGINS, call);
    }

    fn ends(&self) {
        self.line(calls::ENDS, "");
    }
}

/// Starts children and waits for their answers.
pub(super) struct Asking<'a> {
    pub(super) exec: &'a dyn Exec,
    pub(super) program: &'a Ourselves,
    pub(super) patience: Patience,
    /// When everything must have ended.
    pub(super) until: Instant,
}

impl Asking<'_> {
    /// Everything, bottom up, as far as it works.
    pub(super) async fn view(&self, devices: &[String]) -> CudaView {
        let start = self.ask::<CudaStart>(&CudaTask::Start).await;
        let mut view = CudaView {
            start,
            devices: Vec::new(),
            peers: None,
        };
        if view.start.is_err() {
            return view;
        }
        let all = devices.iter().map(|uuid| async move {
            let result = self.ask::<CudaWork>(&CudaTask::Compute(uuid.clone())).await;
            CudaDevice {
                uuid: uuid.clone(),
                result: result.map_err(|fault| fault.of([uuid.as_str()])),
            }
        });
        view.devices = together(all).await;
        let gpus: Vec<String> = (devices.iter())
            .filter(|uuid| uuid.starts_with("GPU-"))
            .cloned()
            .collect();
        if gpus.len() > 1 && view.devices.iter().all(|device| device.result.is_ok()) {
            view.peers = Some(self.ask::<Vec<CudaPeer>>(&CudaTask::Peers(gpus)).await);
        }
        view
    }

    /// One child.
    async fn ask<T: DeserializeOwned>(&self, task: &CudaTask) -> Tried<T> {
        let failed = |why: String| CudaFault::new(CudaCause::Failed { why });
        let left = self.until.saturating_duration_since(Instant::now());
        // The bounds of single calls come first.
        let mut cmd = (self.program.command(task.args())).deadline(left + Duration::from_secs(5));
        // Nothing is left behind: compiled kernels are not kept.
        cmd = cmd
            .env("CUDA_CACHE_DISABLE", "1")
            .env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
        if let CudaTask::Compute(uuid) = task {
            cmd = cmd.env("CUDA_VISIBLE_DEVICES", uuid);
        }
        let calls = Calls::new(self.patience, self.until);
        let mut note = |stream: Stream, line: &str| {
            if stream == Stream::Out {
                calls.note(line);
            }
        };
        let ran = tokio::select! {
            ran = self.exec.run(&cmd, &mut note) => ran,
            // The child is ended with the future that waits for it.
            hung = calls.overdue() => return Err(hung),
        };
        let output = match ran {
            Ok(output) => output,
            Err(ExecError::NotAsked { why, .. }) => {
                return Err(CudaFault::new(CudaCause::NotAsked { why }));
            }
            Err(error) => return Err(failed(format!("CUDA could not be asked: {error}"))),
        };
        if !output.ok() {
            let said = tail(&output.stderr);
            let why = match (&output.status, said.is_empty()) {
                (status, true) => status.to_string(),
                (status, false) => format!("{status}: {said}"),
            };
            let cause = CudaCause::Crashed { why };
            return Err(match (calls.open(), output.status) {
                (Some(open), _) => CudaFault { cause, ..open },
                (None, Status::Signalled(_) | Status::Exited(_)) => CudaFault::new(cause),
            });
        }
        let answer = (output.stdout.lines()).find_map(|line| line.strip_prefix(ANSWER));
        let answer =
            answer.ok_or_else(|| failed("the process for CUDA printed no answer".into()))?;
        serde_json::from_str::<Tried<T>>(answer).unwrap_or_else(|error| {
            Err(failed(format!(
                "the process for CUDA printed no answer: {error}"
            )))
        })
    }
}

/// Waits for all of them at the same time.
async fn together<F: Future>(all: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut waiting: Vec<_> = all.map(|one| (Some(Box::pin(one)), None)).collect();
    std::future::poll_fn(|cx| {
        for (future, done) in &mut waiting {
            if let Some(running) = future
                && let std::task::Poll::Ready(output) = running.as_mut().poll(cx)
            {
                (*future, *done) = (None, Some(output));
            }
        }
        if waiting.iter().all(|(future, _)| future.is_none()) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    waiting.into_iter().filter_map(|(_, done)| done).collect()
}

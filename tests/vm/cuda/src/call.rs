//! The path of every exported function: first the faults, then the answer.

use std::time::Duration;

use crate::process::{self, Process};

/// `CUresult` other than success, as `cuda.h` has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub i32);

impl Code {
    pub const INVALID_VALUE: Self = Self(1);
    pub const OUT_OF_MEMORY: Self = Self(2);
    pub const NOT_INITIALIZED: Self = Self(3);
    pub const NO_DEVICE: Self = Self(100);
    pub const INVALID_DEVICE: Self = Self(101);
    pub const INVALID_CONTEXT: Self = Self(201);
    pub const INVALID_PTX: Self = Self(218);
    pub const INVALID_HANDLE: Self = Self(400);
    pub const NOT_FOUND: Self = Self(500);
    pub const UNKNOWN: Self = Self(999);
}

/// What a function answers.
pub type Answer<T = ()> = Result<T, Code>;

/// Whom a function is about.
#[derive(Debug, Clone, Copy)]
pub enum About {
    /// No device.
    None,
    /// The device with this handle.
    Device(i32),
    /// That of the context of this thread.
    Current,
}

/// A fault of one call.
enum Fault {
    Hang,
    Crash,
    Returns(i32),
}

/// Executes the faults of the function, or its body. The lock on the process has been released
/// before a call hangs, so calls of other threads go on.
pub fn run(symbol: &str, about: About, body: impl FnOnce(&mut Process) -> Answer) -> i32 {
    let verdict = process::with(|process| {
        let process = process?;
        if let Some(fault) = fault(process, symbol, about) {
            return Ok(Err(fault));
        }
        body(process).map(Ok)
    });
    match verdict {
        Ok(Ok(())) => 0,
        Err(code) => code.0,
        Ok(Err(Fault::Returns(code))) => code,
        Ok(Err(Fault::Hang)) => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
        Ok(Err(Fault::Crash)) => std::process::abort(),
    }
}

fn fault(process: &Process, symbol: &str, about: About) -> Option<Fault> {
    let faults = &process.inventory().faults.cuda;
    let of_all = &faults.returns;
    if faults.crash.iter().any(|name| name == symbol) {
        return Some(Fault::Crash);
    }
    let device = match about {
        About::None => None,
        About::Device(raw) => process.listed(raw).ok(),
        About::Current => process.current().ok(),
    };
    let gpu = device.map(|device| &process.gpu(device).cuda);
    let mut hangs = faults
        .hang
        .iter()
        .chain(gpu.iter().flat_map(|gpu| &gpu.hang));
    if hangs.any(|name| name == symbol) {
        return Some(Fault::Hang);
    }
    let code = of_all
        .get(symbol)
        .or_else(|| gpu.and_then(|gpu| gpu.returns.get(symbol)))?;
    (*code != 0).then_some(Fault::Returns(*code))
}

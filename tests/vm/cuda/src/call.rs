//! The path of every exported function: first the faults, then the result.

use std::time::Duration;

use crate::process::{self, Process};

/// `CUresult` error codes from `cuda.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub i32);

impl Code {
    pub const INVALID_VALUE: Self = Self(1);
    pub const OUT_OF_MEMORY: Self = Self(2);
    pub const NOT_INITIALIZED: Self = Self(3);
    pub const DEVICE_UNAVAILABLE: Self = Self(46);
    pub const NO_DEVICE: Self = Self(100);
    pub const INVALID_DEVICE: Self = Self(101);
    pub const INVALID_CONTEXT: Self = Self(201);
    pub const INVALID_PTX: Self = Self(218);
    pub const INVALID_HANDLE: Self = Self(400);
    pub const NOT_FOUND: Self = Self(500);
    pub const UNKNOWN: Self = Self(999);
}

/// The result of a function.
pub type Answer<T = ()> = Result<T, Code>;

/// The device that a function refers to.
#[derive(Debug, Clone, Copy)]
pub enum About {
    /// No device.
    None,
    /// The device with this handle.
    Device(i32),
    /// The device of the current context of this thread.
    Current,
}

/// A fault of one call.
enum Fault {
    Hang,
    Crash,
    Returns(i32),
}

/// Executes the faults of the function, or its body. The lock on the process is released before a call hangs, so that
/// other threads can continue.
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

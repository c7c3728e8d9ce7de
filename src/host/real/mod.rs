//! The machine this process runs on.

mod clock;
mod exec;
mod files;
mod lines;

pub use clock::RealClock;
pub use exec::RealExec;
pub use files::RealFiles;

//! Tests of the engine with small steps on a fake machine.

mod failures;
mod install;
mod journal;
mod kit;
mod leaving;
mod lists;
mod maintenance;
mod memory;
mod obsolete;
mod random;
mod reading;
mod reboot;
mod rollback;
mod secrets;
mod small;
mod snapshot;
mod stream;
mod survey;
mod unattended;
mod undo;

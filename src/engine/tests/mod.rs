//! The engine on small steps and a fake machine.

mod install;
mod journal;
mod kit;
mod look;
mod random;
mod reboot;
mod stream;
mod undo;

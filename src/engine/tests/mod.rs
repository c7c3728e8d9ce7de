//! The engine on small steps and a fake machine.

mod epoch;
mod install;
mod journal;
mod kit;
mod random;
mod reboot;
mod secrets;
mod stream;
mod survey;
mod undo;

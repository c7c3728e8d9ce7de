//! The engine on small steps and a fake machine.

mod epoch;
mod install;
mod journal;
mod kit;
mod late;
mod leaving;
mod random;
mod reboot;
mod secrets;
mod stream;
mod survey;
mod unattended;
mod undo;

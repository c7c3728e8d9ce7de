//! The engine on small steps and a fake machine.

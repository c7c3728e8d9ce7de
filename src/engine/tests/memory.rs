//! A subscriber that keeps every event.

use std::{
    io,
    sync::{Arc, Mutex},
};

use crate::event::{Envelope, Subscriber};

pub struct Memory(pub Arc<Mutex<Vec<Envelope>>>);

impl Subscriber for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn event(&mut self, envelope: &Envelope) -> io::Result<()> {
        self.0.lock().unwrap().push(envelope.clone());
        Ok(())
    }
}

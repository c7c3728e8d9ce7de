//! NVML as the test says.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;

use super::locked;
use crate::host::{Gpu, Nvml};

/// NVML with a settable answer; at first the library is absent.
#[derive(Clone)]
pub struct FakeGpu {
    answer: Arc<Mutex<Nvml>>,
    surveys: Arc<AtomicUsize>,
}

impl Default for FakeGpu {
    fn default() -> Self {
        Self {
            answer: Arc::new(Mutex::new(Nvml::NotLoadable {
                why: "libnvidia-ml.so.1: cannot open shared object file".to_owned(),
            })),
            surveys: Arc::default(),
        }
    }
}

impl FakeGpu {
    /// Sets what NVML says from now on.
    pub fn set(&self, answer: Nvml) {
        *locked(&self.answer) = answer;
    }

    /// How often NVML was asked.
    #[must_use]
    pub fn surveys(&self) -> usize {
        self.surveys.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Gpu for FakeGpu {
    async fn survey(&self) -> Nvml {
        self.surveys.fetch_add(1, Ordering::Relaxed);
        locked(&self.answer).clone()
    }
}

//! NVML as the test says.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use super::locked;
use crate::host::{Gpu, Nvml};

/// NVML with a settable answer; at first the library is absent.
#[derive(Clone)]
pub struct FakeGpu {
    answer: Arc<Mutex<Nvml>>,
}

impl Default for FakeGpu {
    fn default() -> Self {
        Self {
            answer: Arc::new(Mutex::new(Nvml::NotLoadable {
                why: "libnvidia-ml.so.1: cannot open shared object file".to_owned(),
            })),
        }
    }
}

impl FakeGpu {
    /// Sets what NVML says from now on.
    pub fn set(&self, answer: Nvml) {
        *locked(&self.answer) = answer;
    }
}

#[async_trait]
impl Gpu for FakeGpu {
    async fn survey(&self) -> Nvml {
        locked(&self.answer).clone()
    }
}

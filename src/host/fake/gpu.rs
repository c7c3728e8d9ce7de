//! Fake NVML and CUDA.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};
use std::time::Duration;

use async_trait::async_trait;

use super::locked;
use crate::host::{CudaFault, CudaView, Gpu, Nvml};

/// NVML and CUDA with settable results. By default, the libraries are missing.
#[derive(Clone)]
pub struct FakeGpu {
    answer: Arc<Mutex<Nvml>>,
    cuda: Arc<Mutex<CudaView>>,
    surveys: Arc<AtomicUsize>,
}

impl Default for FakeGpu {
    fn default() -> Self {
        Self {
            answer: Arc::new(Mutex::new(Nvml::NotLoadable {
                why: "libnvidia-ml.so.1: cannot open shared object file".to_owned(),
            })),
            cuda: Arc::new(Mutex::new(CudaView::without(CudaFault::NotLoadable {
                why: "libcuda.so.1: cannot open shared object file".to_owned(),
            }))),
            surveys: Arc::default(),
        }
    }
}

impl FakeGpu {
    /// Sets the NVML result.
    pub fn set(&self, answer: Nvml) {
        *locked(&self.answer) = answer;
    }

    /// Sets the CUDA result.
    pub fn set_cuda(&self, answer: CudaView) {
        *locked(&self.cuda) = answer;
    }

    /// The number of NVML queries.
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

    async fn compute(&self, _: &[String], _: Duration) -> CudaView {
        locked(&self.cuda).clone()
    }
}

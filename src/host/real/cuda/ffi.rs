//! CUDA's driver API behind safe functions: all `unsafe` code of the probe is here. Signatures,
//! versions of symbols and numbers are those of `cuda.h`, which the reference of the driver API
//! documents: <https://docs.nvidia.com/cuda/cuda-driver-api/modules.html>.
//!
//! The process ends soon after the last call, and with it everything that was allocated on a device.
//! So nothing is freed here: a call that frees can hang on a sick GPU, too.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::path::Path;
use std::ptr;

use libloading::{Library, Symbol};

use crate::host::{CudaCause, CudaFault};

/// Is told of each call: before it starts, and when it has ended.
pub(super) trait Tracer: Sync {
    /// This thread starts this call.
    fn begins(&self, call: &str);
    /// The call of this thread has ended.
    fn ends(&self);
}

/// The result of a call.
pub(super) type Tried<T> = Result<T, CudaFault>;

/// `CUcontext`.
type RawContext = *mut c_void;

/// The opened library.
pub(super) struct Cuda<'t> {
    library: Library,
    tracer: &'t dyn Tracer,
}

/// A device, by its index.
#[derive(Clone, Copy)]
pub(super) struct Device<'c> {
    cuda: &'c Cuda<'c>,
    raw: c_int,
}

/// The primary context of a device.
pub(super) struct Context<'c> {
    cuda: &'c Cuda<'c>,
    raw: RawContext,
}

// SAFETY: the driver API is thread-safe, and a context may be made current to any thread.
unsafe impl Send for Context<'_> {}

/// Memory of a device, which lasts as long as the process.
pub(super) struct Memory<'c> {
    /// `CUdeviceptr`.
    raw: u64,
    bytes: usize,
    owner: PhantomData<&'c ()>,
}

/// Numbers in pinned memory of the host, which last as long as the process.
pub(super) struct Pinned<'c> {
    raw: *mut u32,
    count: usize,
    owner: PhantomData<&'c ()>,
}

/// The kernel of the probe, compiled for a device.
pub(super) struct Kernel<'c> {
    raw: *mut c_void,
    owner: PhantomData<&'c ()>,
}

/// `CUdevice_attribute`.
#[derive(Clone, Copy)]
#[repr(i32)]
pub(super) enum Attribute {
    /// `CU_DEVICE_ATTRIBUTE_CLOCK_RATE`, in kHz.
    ClockRate = 13,
    /// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
    Multiprocessors = 16,
    /// `CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE`, in kHz.
    MemoryClockRate = 36,
    /// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`.
    CapabilityMajor = 75,
    /// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR`.
    CapabilityMinor = 76,
}

/// Calls a function of the library by its name: `call!(cuda, "cuInit", flags: c_uint)`. The caller
/// answers for the signature and the arguments.
macro_rules! call {
    ($cuda:expr, $name:literal $(, $arg:expr => $type:ty)*) => {{
        let cuda: &Cuda<'_> = $cuda;
        type Function = unsafe extern "C" fn($($type),*) -> c_int;
        let function: Symbol<'_, Function> = cuda.find($name)?;
        cuda.tracer.begins($name);
        let code = function($($arg),*);
        cuda.tracer.ends();
        match code {
            0 => Ok(()),
            code => Err(CudaFault::in_call($name, CudaCause::Returned { code })),
        }
    }};
}

impl<'t> Cuda<'t> {
    /// Opens the library.
    pub(super) fn open(path: &Path, tracer: &'t dyn Tracer) -> Tried<Self> {
        // SAFETY: the driver's own library, found as every CUDA program finds it; its initialisers
        // run in any process that uses the GPU.
        let library = unsafe { Library::new(path) }.map_err(|error| {
            CudaFault::new(CudaCause::NotLoadable {
                why: error.to_string(),
            })
        })?;
        Ok(Self { library, tracer })
    }

    /// A function of the library. Only a pointer to it is made here.
    fn find<F>(&self, name: &str) -> Tried<Symbol<'_, F>> {
        // SAFETY: `F` is the function's type in `cuda.h`, for which each caller answers.
        unsafe { self.library.get(name.as_bytes()) }
            .map_err(|_missing| CudaFault::in_call(name, CudaCause::NoSymbol))
    }

    /// `cuInit`.
    pub(super) fn init(&self) -> Tried<()> {
        // SAFETY: it takes flags, which must be 0.
        unsafe { call!(self, "cuInit", 0 => c_uint) }
    }

    /// The newest CUDA version of the driver: 1000 times the major number, 10 times the minor one.
    pub(super) fn version(&self) -> Tried<c_int> {
        let mut version = 0;
        // SAFETY: it writes one number.
        unsafe { call!(self, "cuDriverGetVersion", &raw mut version => *mut c_int) }?;
        Ok(version)
    }

    /// The number of devices.
    pub(super) fn count(&self) -> Tried<c_int> {
        let mut count = 0;
        // SAFETY: it writes one number.
        unsafe { call!(self, "cuDeviceGetCount", &raw mut count => *mut c_int) }?;
        Ok(count)
    }

    /// The device with this index.
    pub(super) fn device<'c>(&'c self, index: c_int) -> Tried<Device<'c>> {
        let mut raw = 0;
        // SAFETY: it writes one handle, which is a number.
        unsafe { call!(self, "cuDeviceGet", &raw mut raw => *mut c_int, index => c_int) }?;
        Ok(Device { cuda: self, raw })
    }

    /// Copies between the memories of two devices.
    pub(super) fn copy_to_peer(
        &self,
        to: (&Context<'_>, &Memory<'_>),
        from: (&Context<'_>, &Memory<'_>),
    ) -> Tried<()> {
        let bytes = to.1.bytes.min(from.1.bytes);
        // SAFETY: both memories belong to their contexts and have at least `bytes` bytes.
        unsafe {
            call!(self, "cuMemcpyPeer",
                to.1.raw => u64, to.0.raw => RawContext,
                from.1.raw => u64, from.0.raw => RawContext, bytes => usize)
        }
    }
}

impl<'c> Device<'c> {
    /// Its marketing name.
    pub(super) fn name(&self) -> Tried<String> {
        let mut text = [0; 256];
        // SAFETY: it writes at most as many bytes as it is told, with an end.
        unsafe {
            call!(self.cuda, "cuDeviceGetName",
                text.as_mut_ptr() => *mut c_char, 256 => c_int, self.raw => c_int)
        }?;
        Ok(self::text(&text))
    }

    /// Its 16 bytes of UUID; of a MIG device those of the device, if the driver has the function
    /// that tells them.
    pub(super) fn uuid(&self) -> Tried<[u8; 16]> {
        let mut uuid = [0; 16];
        let place = (&raw mut uuid).cast::<c_void>();
        // SAFETY: `CUuuid` is 16 bytes, which it writes. The same for the older version below.
        let found = unsafe {
            call!(self.cuda, "cuDeviceGetUuid_v2", place => *mut c_void, self.raw => c_int)
        };
        match found {
            Err(fault) if fault.cause == CudaCause::NoSymbol => unsafe {
                call!(self.cuda, "cuDeviceGetUuid", place => *mut c_void, self.raw => c_int)
            }?,
            found => found?,
        }
        Ok(uuid)
    }

    /// Its place on the bus, as CUDA writes it.
    pub(super) fn bus_id(&self) -> Tried<String> {
        let mut text = [0; 32];
        // SAFETY: it writes at most as many bytes as it is told, with an end.
        unsafe {
            call!(self.cuda, "cuDeviceGetPCIBusId",
                text.as_mut_ptr() => *mut c_char, 32 => c_int, self.raw => c_int)
        }?;
        Ok(self::text(&text))
    }

    /// Its memory in bytes.
    pub(super) fn memory(&self) -> Tried<usize> {
        let mut bytes = 0;
        // SAFETY: it writes one `size_t`.
        unsafe {
            call!(self.cuda, "cuDeviceTotalMem_v2", &raw mut bytes => *mut usize, self.raw => c_int)
        }?;
        Ok(bytes)
    }

    pub(super) fn attribute(&self, attribute: Attribute) -> Tried<c_int> {
        let mut value = 0;
        // SAFETY: it writes one number.
        unsafe {
            call!(self.cuda, "cuDeviceGetAttribute",
                &raw mut value => *mut c_int, attribute as c_int => c_int, self.raw => c_int)
        }?;
        Ok(value)
    }

    /// Whether it can use the memory of another device directly.
    pub(super) fn reaches(&self, peer: &Device<'_>) -> Tried<bool> {
        let mut can = 0;
        // SAFETY: it writes one number.
        unsafe {
            call!(self.cuda, "cuDeviceCanAccessPeer",
                &raw mut can => *mut c_int, self.raw => c_int, peer.raw => c_int)
        }?;
        Ok(can != 0)
    }

    /// Its primary context, made if it is not there yet.
    pub(super) fn context(&self) -> Tried<Context<'c>> {
        let mut raw = ptr::null_mut();
        // SAFETY: it writes one handle. The context is never released, so the handle stays valid.
        unsafe {
            call!(self.cuda, "cuDevicePrimaryCtxRetain",
                &raw mut raw => *mut RawContext, self.raw => c_int)
        }?;
        Ok(Context {
            cuda: self.cuda,
            raw,
        })
    }
}

impl<'c> Context<'c> {
    /// Makes it the context of this thread, which all functions below need.
    fn enter(&self) -> Tried<()> {
        // SAFETY: the handle is valid, see `Device::context`.
        unsafe { call!(self.cuda, "cuCtxSetCurrent", self.raw => RawContext) }
    }

    /// Memory of the device.
    pub(super) fn memory(&self, bytes: usize) -> Tried<Memory<'c>> {
        self.enter()?;
        let mut raw = 0;
        // SAFETY: it writes one address.
        unsafe { call!(self.cuda, "cuMemAlloc_v2", &raw mut raw => *mut u64, bytes => usize) }?;
        Ok(Memory {
            raw,
            bytes,
            owner: PhantomData,
        })
    }

    /// Pinned memory of the host, all zeros.
    pub(super) fn pinned(&self, count: usize) -> Tried<Pinned<'c>> {
        self.enter()?;
        let mut place: *mut c_void = ptr::null_mut();
        let bytes = count * size_of::<u32>();
        // SAFETY: it writes one address; flags are 0.
        unsafe {
            call!(self.cuda, "cuMemHostAlloc",
                &raw mut place => *mut *mut c_void, bytes => usize, 0 => c_uint)
        }?;
        let raw = place.cast::<u32>();
        if raw.is_null() || !raw.is_aligned() {
            let why = "it gave no memory that numbers can lie in".to_owned();
            return Err(CudaFault::in_call(
                "cuMemHostAlloc",
                CudaCause::Failed { why },
            ));
        }
        // SAFETY: `bytes` bytes are there, and nothing else has the address.
        unsafe { ptr::write_bytes(raw, 0, count) };
        Ok(Pinned {
            raw,
            count,
            owner: PhantomData,
        })
    }

    /// Copies to the device.
    pub(super) fn write(&self, to: &Memory<'_>, from: &Pinned<'_>) -> Tried<()> {
        self.enter()?;
        let bytes = to.bytes.min(from.bytes());
        // SAFETY: both have at least `bytes` bytes, and the call returns after the copy.
        unsafe {
            call!(self.cuda, "cuMemcpyHtoD_v2",
                to.raw => u64, from.raw.cast_const().cast() => *const c_void, bytes => usize)
        }
    }

    /// Copies from the device.
    pub(super) fn read(&self, to: &mut Pinned<'_>, from: &Memory<'_>) -> Tried<()> {
        self.enter()?;
        let bytes = to.bytes().min(from.bytes);
        // SAFETY: as in `write`.
        unsafe {
            call!(self.cuda, "cuMemcpyDtoH_v2",
                to.raw.cast() => *mut c_void, from.raw => u64, bytes => usize)
        }
    }

    /// Copies within the device; the copy may still run when this returns.
    pub(super) fn copy(&self, to: &Memory<'_>, from: &Memory<'_>) -> Tried<()> {
        self.enter()?;
        let bytes = to.bytes.min(from.bytes);
        // SAFETY: both have at least `bytes` bytes and are never freed.
        unsafe {
            call!(self.cuda, "cuMemcpyDtoD_v2",
                to.raw => u64, from.raw => u64, bytes => usize)
        }
    }

    /// Waits until everything that was started has ended.
    pub(super) fn finish(&self) -> Tried<()> {
        self.enter()?;
        // SAFETY: it takes nothing.
        unsafe { call!(self.cuda, "cuCtxSynchronize") }
    }

    /// Compiles the kernel of the probe from PTX.
    pub(super) fn compile(&self, ptx: &CStr, name: &CStr) -> Tried<Kernel<'c>> {
        self.enter()?;
        let mut module: *mut c_void = ptr::null_mut();
        let mut raw: *mut c_void = ptr::null_mut();
        // SAFETY: both texts have an end. The module is never unloaded, so the function stays valid.
        unsafe {
            call!(self.cuda, "cuModuleLoadData",
                &raw mut module => *mut *mut c_void, ptx.as_ptr().cast() => *const c_void)?;
            call!(self.cuda, "cuModuleGetFunction",
                &raw mut raw => *mut *mut c_void, module => *mut c_void,
                name.as_ptr() => *const c_char)?;
        }
        Ok(Kernel {
            raw,
            owner: PhantomData,
        })
    }

    /// Starts the kernel of the probe on as many numbers as both memories hold, in blocks of
    /// `threads`.
    pub(super) fn launch(
        &self,
        kernel: &Kernel<'_>,
        (to, from): (&Memory<'_>, &Memory<'_>),
        mut rounds: u32,
        threads: u32,
    ) -> Tried<()> {
        self.enter()?;
        let numbers = to.bytes.min(from.bytes) / size_of::<u32>();
        let mut count = u32::try_from(numbers).unwrap_or(u32::MAX);
        let blocks = count.div_ceil(threads);
        let (mut to, mut from) = (to.raw, from.raw);
        // As `kernel.ptx` declares them.
        let mut parameters: [*mut c_void; 4] = [
            (&raw mut to).cast(),
            (&raw mut from).cast(),
            (&raw mut count).cast(),
            (&raw mut rounds).cast(),
        ];
        // SAFETY: there are as many parameters as the kernel has, of its types; the driver reads them
        // before the call returns. The kernel touches `count` numbers of each memory.
        unsafe {
            call!(self.cuda, "cuLaunchKernel",
                kernel.raw => *mut c_void,
                blocks => c_uint, 1 => c_uint, 1 => c_uint,
                threads => c_uint, 1 => c_uint, 1 => c_uint,
                0 => c_uint, ptr::null_mut() => *mut c_void,
                parameters.as_mut_ptr() => *mut *mut c_void,
                ptr::null_mut() => *mut *mut c_void)
        }
    }

    /// Opens the memory of another device to this one.
    pub(super) fn reach(&self, peer: &Context<'_>) -> Tried<()> {
        self.enter()?;
        // SAFETY: the handle is valid; flags are 0.
        unsafe { call!(self.cuda, "cuCtxEnablePeerAccess", peer.raw => RawContext, 0 => c_uint) }
    }
}

impl Pinned<'_> {
    fn bytes(&self) -> usize {
        self.count * size_of::<u32>()
    }

    pub(super) fn numbers(&self) -> &[u32] {
        // SAFETY: all of them were set in `Context::pinned`, and no copy is under way: copies from
        // and to the host return after they have ended.
        unsafe { std::slice::from_raw_parts(self.raw, self.count) }
    }

    /// The numbers, to be changed.
    pub(super) fn numbers_mut(&mut self) -> &mut [u32] {
        // SAFETY: as above, and `self` is borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.raw, self.count) }
    }
}

/// The text of a buffer up to its end. A `c_char` has a sign on x86_64, and none on aarch64.
fn text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = (buffer.iter())
        .take_while(|byte| **byte != 0)
        .map(|byte| u8::from_ne_bytes(byte.to_ne_bytes()))
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

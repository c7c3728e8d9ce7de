//! Safe wrapper of the CUDA driver API. It contains all `unsafe` code of the probe. Signatures,
//! symbol versions and constants are from `cuda.h`, as documented in the driver API reference:
//! <https://docs.nvidia.com/cuda/cuda-driver-api/modules.html>.
//!
//! The process exits soon after the last call, which frees all device memory. Nothing is freed
//! explicitly, because such a call can also hang on a faulty GPU.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::ptr;

use libloading::Library;

use crate::host::CudaFault;

/// The result of a call.
pub(super) type Tried<T> = Result<T, CudaFault>;

/// Generates the struct `Cuda` from function declarations. It contains the function pointers, and has
/// a constructor that loads the library, and a method per function that converts an error code to an
/// error. If a driver lacks a function, the name after `or` is used.
macro_rules! driver_api {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(or $older:ident)?;)*) => {
        /// The opened library.
        #[expect(non_snake_case, reason = "names from `cuda.h`")]
        pub(super) struct Cuda {
            $($name: unsafe extern "C" fn($($type),*) -> c_int,)*
            /// Keeps the pointers valid.
            _library: Library,
        }

        #[expect(non_snake_case, reason = "names from `cuda.h`")]
        #[expect(clippy::too_many_arguments, reason = "`cuLaunchKernel` has eleven")]
        impl Cuda {
            /// Opens the library and looks up all functions.
            pub(super) fn open(name: &str) -> Tried<Self> {
                // SAFETY: the driver library, found in the same way as by every CUDA program. Its
                // initializers run in every process that uses the GPU.
                let library = unsafe { Library::new(name) }
                    .map_err(|error| CudaFault::NotLoadable { why: error.to_string() })?;
                Ok(Self {
                    $($name: find(&library, stringify!($name), &[$(stringify!($older))?])?,)*
                    _library: library,
                })
            }

            $(
                unsafe fn $name(&self, $($arg: $type),*) -> Tried<()> {
                    // SAFETY: the caller guarantees valid arguments according to `cuda.h`.
                    match unsafe { (self.$name)($($arg),*) } {
                        0 => Ok(()),
                        code => Err(CudaFault::Returned { call: stringify!($name).to_owned(), code }),
                    }
                }
            )*
        }
    };
}

driver_api! {
    fn cuInit(flags: c_uint);
    fn cuDriverGetVersion(version: *mut c_int);
    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDeviceGet(device: *mut c_int, index: c_int);
    fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int);
    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) or cuDeviceGetUuid;
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int);
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int);
    fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int);
    fn cuCtxSetCurrent(context: *mut c_void);
    fn cuCtxSynchronize();
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize);
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize);
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize);
    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize);
    fn cuModuleLoadData(module: *mut *mut c_void, image: *const c_void);
    fn cuModuleGetFunction(function: *mut *mut c_void, module: *mut c_void, name: *const c_char);
    fn cuLaunchKernel(
        function: *mut c_void,
        blocks_x: c_uint, blocks_y: c_uint, blocks_z: c_uint,
        threads_x: c_uint, threads_y: c_uint, threads_z: c_uint,
        shared_bytes: c_uint, stream: *mut c_void,
        parameters: *mut *mut c_void, extra: *mut *mut c_void,
    );
}

/// Returns a pointer to the first of these functions that the library contains.
fn find<F: Copy>(library: &Library, name: &str, older: &[&str]) -> Tried<F> {
    let mut names = [name].into_iter().chain(older.iter().copied());
    // SAFETY: `F` is the type of the function in `cuda.h`, as declared above.
    let found = names.find_map(|name| unsafe { library.get::<F>(name.as_bytes()) }.ok());
    (found.map(|symbol| *symbol)).ok_or_else(|| CudaFault::NoFunction {
        call: name.to_owned(),
    })
}

/// Returns the value that a call has written.
fn written<T>(mut place: T, call: impl FnOnce(*mut T) -> Tried<()>) -> Tried<T> {
    call(&raw mut place)?;
    Ok(place)
}

/// A device handle (`CUdevice`).
pub(super) struct Device<'c> {
    cuda: &'c Cuda,
    raw: c_int,
}

/// The primary context of a device. It is current on this thread, so this value must not be moved to
/// another thread.
pub(super) struct Context<'c> {
    cuda: &'c Cuda,
    thread: PhantomData<*mut ()>,
}

/// Device memory, valid until the process exits.
pub(super) struct Memory<'c> {
    /// `CUdeviceptr`.
    raw: u64,
    bytes: usize,
    owner: PhantomData<&'c ()>,
}

/// The probe kernel, compiled for a device.
pub(super) struct ProbeKernel<'c> {
    raw: *mut c_void,
    owner: PhantomData<&'c ()>,
}

impl Cuda {
    /// Initializes CUDA. Must be called before all other functions.
    pub(super) fn init(&self) -> Tried<()> {
        // SAFETY: the argument is flags, which must be 0.
        unsafe { self.cuInit(0) }
    }

    /// The latest CUDA version that the driver supports: 1000 × major + 10 × minor.
    pub(super) fn version(&self) -> Tried<c_int> {
        // SAFETY: writes one number.
        written(0, |place| unsafe { self.cuDriverGetVersion(place) })
    }

    /// All devices.
    pub(super) fn devices(&self) -> Tried<Vec<Device<'_>>> {
        // SAFETY: writes one number.
        let count = written(0, |place| unsafe { self.cuDeviceGetCount(place) })?;
        let device = |index| {
            // SAFETY: writes one handle, which is a number.
            let raw = written(0, |place| unsafe { self.cuDeviceGet(place, index) })?;
            Ok(Device { cuda: self, raw })
        };
        (0..count).map(device).collect()
    }
}

impl<'c> Device<'c> {
    /// The marketing name.
    pub(super) fn name(&self) -> Tried<String> {
        // SAFETY: writes at most the given number of bytes, including a terminator.
        let text = written([0_u8; 256], |place| unsafe {
            self.cuda.cuDeviceGetName(place.cast(), 256, self.raw)
        })?;
        let bytes: Vec<u8> = text.into_iter().take_while(|byte| *byte != 0).collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The 16 bytes of the UUID. For a MIG device, this is the UUID of the MIG device only if the
    /// driver has `cuDeviceGetUuid_v2`.
    pub(super) fn uuid(&self) -> Tried<[u8; 16]> {
        // SAFETY: writes a `CUuuid`, which is 16 bytes.
        written([0; 16], |place| unsafe {
            self.cuda.cuDeviceGetUuid_v2(place, self.raw)
        })
    }

    /// The memory in bytes.
    pub(super) fn memory(&self) -> Tried<usize> {
        // SAFETY: writes one `size_t`.
        written(0, |place| unsafe {
            self.cuda.cuDeviceTotalMem_v2(place, self.raw)
        })
    }

    /// The compute capability (major, minor).
    pub(super) fn capability(&self) -> Tried<(c_int, c_int)> {
        let attribute = |which| {
            // SAFETY: writes one number.
            written(0, |place| unsafe {
                self.cuda.cuDeviceGetAttribute(place, which, self.raw)
            })
        };
        // `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
        Ok((attribute(75)?, attribute(76)?))
    }

    /// Makes the primary context of the device current on this thread.
    pub(super) fn context(&self) -> Tried<Context<'c>> {
        let cuda = self.cuda;
        // SAFETY: writes one handle. The context is never released, so the handle stays valid.
        let raw = written(ptr::null_mut(), |place| unsafe {
            cuda.cuDevicePrimaryCtxRetain(place, self.raw)
        })?;
        // SAFETY: the handle is valid.
        unsafe { cuda.cuCtxSetCurrent(raw) }?;
        Ok(Context {
            cuda,
            thread: PhantomData,
        })
    }
}

impl<'c> Context<'c> {
    /// Allocates device memory for this many numbers.
    pub(super) fn memory(&self, numbers: usize) -> Tried<Memory<'c>> {
        let bytes = numbers * size_of::<u32>();
        // SAFETY: writes one address.
        let raw = written(0, |place| unsafe { self.cuda.cuMemAlloc_v2(place, bytes) })?;
        Ok(Memory {
            raw,
            bytes,
            owner: PhantomData,
        })
    }

    /// Copies to the device.
    pub(super) fn write(&self, to: &Memory<'_>, from: &[u32]) -> Tried<()> {
        let bytes = to.bytes.min(size_of_val(from));
        // SAFETY: both buffers have at least `bytes` bytes. The call returns after it has read
        // them.
        unsafe { (self.cuda).cuMemcpyHtoD_v2(to.raw, from.as_ptr().cast(), bytes) }
    }

    /// Copies from the device.
    pub(super) fn read(&self, to: &mut [u32], from: &Memory<'_>) -> Tried<()> {
        let bytes = from.bytes.min(size_of_val(to));
        // SAFETY: both buffers have at least `bytes` bytes. The call returns after it has written
        // them.
        unsafe { (self.cuda).cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), from.raw, bytes) }
    }

    /// Copies within the device. The copy may still be running when this returns.
    pub(super) fn copy(&self, to: &Memory<'_>, from: &Memory<'_>) -> Tried<()> {
        // SAFETY: both buffers have at least this many bytes and are never freed.
        unsafe { (self.cuda).cuMemcpyDtoD_v2(to.raw, from.raw, to.bytes.min(from.bytes)) }
    }

    /// Waits until all started operations have finished.
    pub(super) fn finish(&self) -> Tried<()> {
        // SAFETY: no arguments.
        unsafe { self.cuda.cuCtxSynchronize() }
    }

    /// Compiles the probe kernel from PTX.
    pub(super) fn compile(&self, ptx: &CStr, name: &CStr) -> Tried<ProbeKernel<'c>> {
        // SAFETY: writes one handle. The text has a terminator.
        let module = written(ptr::null_mut(), |place| unsafe {
            self.cuda.cuModuleLoadData(place, ptx.as_ptr().cast())
        })?;
        // SAFETY: same as above. The module is never unloaded, so the function stays valid.
        let raw = written(ptr::null_mut(), |place| unsafe {
            (self.cuda).cuModuleGetFunction(place, module, name.as_ptr())
        })?;
        Ok(ProbeKernel {
            raw,
            owner: PhantomData,
        })
    }

    /// Starts the probe kernel for all numbers that fit into both memories, in blocks of `threads`.
    pub(super) fn launch(
        &self,
        kernel: &ProbeKernel<'_>,
        (to, from): (&Memory<'_>, &Memory<'_>),
        mut rounds: u32,
        threads: u32,
    ) -> Tried<()> {
        let numbers = to.bytes.min(from.bytes) / size_of::<u32>();
        let mut count = u32::try_from(numbers).unwrap_or(u32::MAX);
        let blocks = count.div_ceil(threads);
        let (mut to, mut from) = (to.raw, from.raw);
        // As declared in `kernel.ptx`.
        let mut parameters: [*mut c_void; 4] = [
            (&raw mut to).cast(),
            (&raw mut from).cast(),
            (&raw mut count).cast(),
            (&raw mut rounds).cast(),
        ];
        let (parameters, none) = (parameters.as_mut_ptr(), ptr::null_mut());
        // SAFETY: the parameters match the kernel in number and types, and the driver reads them
        // before the call returns. The kernel accesses `count` numbers of each memory.
        unsafe {
            self.cuda.cuLaunchKernel(
                kernel.raw,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                none,
                parameters,
                ptr::null_mut(),
            )
        }
    }
}

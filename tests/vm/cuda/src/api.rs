//! The exported functions. Signatures and symbol versions are from `cuda.h`:
//! <https://docs.nvidia.com/cuda/cuda-driver-api/modules.html>.

use std::ffi::{c_int, c_uint, c_void};

use crate::call::{About, Answer, Code, run};
use crate::pointer::{Given, Host, Out, Parameters, Text};
use crate::process::Process;

/// The entry point of the only supported kernel.
const KERNEL: &str = "gpu_bootstrap_probe";

/// Handles of its module and of its function.
const MODULE: usize = 0x00c0_0001;
const FUNCTION: usize = 0x00c0_0002;

/// Exports C functions. The body gets the process under the name between the bars.
macro_rules! exports {
    ($($symbol:ident($($arg:ident: $type:ty),*) $about:expr, |$it:ident| $body:expr;)*) => {
        /// The functions exported here.
        pub const SYMBOLS: &[&str] = &[$(stringify!($symbol)),*];
        $(
            // SAFETY: no other function of this library has this name.
            #[unsafe(no_mangle)]
            extern "C" fn $symbol($($arg: $type),*) -> c_int {
                run(stringify!($symbol), $about, |$it| $body)
            }
        )*
    };
}

exports! {
    cuInit(flags: c_uint) About::None, |it| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        it.start()
    };
    cuDriverGetVersion(version: Out<c_int>) About::None, |it| {
        let (major, minor) = it.inventory().cuda().ok_or(Code::UNKNOWN)?;
        version.put((major * 1000 + minor * 10) as c_int)
    };
    cuDeviceGetCount(count: Out<c_int>) About::None, |it| count.put(it.devices()?.len() as c_int);
    cuDeviceGet(device: Out<c_int>, index: c_int) About::Device(index), |it| {
        it.listed(index)?;
        device.put(index)
    };
    cuDeviceGetName(name: Text, room: c_int, device: c_int) About::Device(device), |it| {
        let device = it.listed(device)?;
        name.put(room, &it.gpu(device).name)
    };
    cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: c_int) About::Device(device), |it| {
        let device = it.listed(device)?;
        uuid.put(it.uuid_bytes(device)?)
    };
    cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) About::Device(device), |it| {
        let device = it.listed(device)?;
        bytes.put((it.gpu(device).memory_mib as usize) << 20)
    };
    cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: c_int) About::Device(device),
        |it| {
            let device = it.listed(device)?;
            let gpu = it.gpu(device);
            let (major, minor) = gpu.capability();
            value.put(match attribute {
                16 => it.multiprocessors() as c_int,
                75 => major as c_int,
                76 => minor as c_int,
                _ => return Err(Code::INVALID_VALUE),
            })
        };
    cuDevicePrimaryCtxRetain(context: Out<usize>, device: c_int) About::Device(device), |it| {
        let device = it.listed(device)?;
        context.put(it.retain(device)?)
    };
    cuCtxSetCurrent(context: usize) About::None, |it| it.enter(context);
    cuCtxSynchronize() About::Current, |it| it.current().map(|_device| ());
    cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) About::Current, |it| {
        let (unused, all) = it.memory()?;
        free.put(unused as usize)?;
        total.put(all as usize)
    };
    cuMemAlloc_v2(address: Out<u64>, bytes: usize) About::Current, |it| {
        address.put(it.allocate(bytes)?)
    };
    cuMemcpyHtoD_v2(to: u64, from: Host, bytes: usize) About::Current, |it| {
        it.current()?;
        from.read(it.bytes(to, bytes)?)
    };
    cuMemcpyDtoH_v2(to: Host, from: u64, bytes: usize) About::Current, |it| {
        let device = it.current()?;
        let wrong = it.gpu(device).cuda.corrupts_memory;
        let mut copy = it.bytes(from, bytes)?.to_vec();
        flip(&mut copy, wrong);
        to.write(&copy)
    };
    cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) About::Current, |it| {
        it.current()?;
        let copy = it.bytes(from, bytes)?.to_vec();
        it.bytes(to, bytes)?.copy_from_slice(&copy);
        Ok(())
    };
    cuModuleLoadData(module: Out<usize>, image: Given) About::Current, |it| {
        it.current()?;
        let text = image.text()?;
        if !text.contains(".version ") || !text.contains(&format!(".entry {KERNEL}(")) {
            return Err(Code::INVALID_PTX);
        }
        module.put(MODULE)
    };
    cuModuleGetFunction(function: Out<usize>, module: usize, name: Given) About::Current, |it| {
        it.current()?;
        if module != MODULE {
            return Err(Code::INVALID_HANDLE);
        }
        if name.text()? != KERNEL {
            return Err(Code::NOT_FOUND);
        }
        function.put(FUNCTION)
    };
    cuLaunchKernel(
        function: usize, blocks: c_uint, blocks_y: c_uint, blocks_z: c_uint,
        threads: c_uint, threads_y: c_uint, threads_z: c_uint,
        _shared: c_uint, _stream: *mut c_void, parameters: Parameters, _extra: *mut c_void
    ) About::Current, |it| {
        if function != FUNCTION {
            return Err(Code::INVALID_HANDLE);
        }
        if [blocks_y, blocks_z, threads_y, threads_z] != [1; 4] {
            return Err(Code::INVALID_VALUE);
        }
        compute(it, blocks * threads, &parameters)
    };
}

fn flip(bytes: &mut [u8], wrong: bool) {
    let middle = bytes.len() / 2;
    if let (true, Some(byte)) = (wrong, bytes.get_mut(middle)) {
        *byte ^= 1;
    }
}

/// Computes the kernel of the probe with `threads` threads. `kernel.ptx` of the product documents each step.
fn compute(it: &mut Process, threads: u32, parameters: &Parameters) -> Answer {
    let device = it.current()?;
    let wrong = it.gpu(device).cuda.computes_wrong;
    let (to, from): (u64, u64) = (parameters.get(0)?, parameters.get(1)?);
    let (count, rounds): (u32, u32) = (parameters.get(2)?, parameters.get(3)?);
    let numbers = count.min(threads) as usize;
    if it.owner(to)? != device || it.owner(from)? != device {
        return Err(Code::INVALID_VALUE);
    }
    let given = it.bytes(from, numbers * 4)?.to_vec();
    let result = it.bytes(to, numbers * 4)?;
    for (given, place) in given.chunks_exact(4).zip(result.chunks_exact_mut(4)) {
        let mut number = u32::from_ne_bytes([given[0], given[1], given[2], given[3]]);
        let mut sum = 1.0_f32;
        for _ in 0..rounds {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            sum = sum.mul_add(0.5, (number >> 8) as f32);
        }
        place.copy_from_slice(&(number ^ sum.to_bits()).to_ne_bytes());
    }
    flip(result, wrong);
    Ok(())
}

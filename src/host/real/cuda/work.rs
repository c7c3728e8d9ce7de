//! The CUDA work of a child process: list the devices, or compute on one. Each phase is reported
//! before it starts, as a phrase for "{phase} timed out after 10 s".

use std::ffi::CStr;
use std::time::Instant;

use super::ffi::{Context, Cuda, Device, Tried};
use crate::host::{CudaFault, CudaStart, CudaWork, bare_uuid};

/// A callback that receives the next phase.
pub(super) type Phase<'p> = dyn FnMut(&str) + 'p;

/// The phases in which the driver may start or stop GPUs.
pub(super) const STARTING: [&str; 3] = [INIT, CONTEXT, END];
pub(super) const END: &str = "exiting the process";
const INIT: &str = "initializing CUDA (`cuInit`)";
const CONTEXT: &str = "creating a context (`cuDevicePrimaryCtxRetain`)";

/// The library name in the driver packages of every distribution.
const LIBRARY: &str = "libcuda.so.1";

/// The kernel with a C string terminator.
const PTX: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("kernel.ptx"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the kernel contains a NUL byte"),
    };
/// The name of the kernel.
const KERNEL: &CStr = c"gpu_bootstrap_probe";

/// The number of copied values (16 MiB).
const COPIED: usize = 4 << 20;
/// The number of computed values: enough blocks for every multiprocessor of the largest GPUs.
const COMPUTED: usize = 64 << 10;
/// Steps per value.
const ROUNDS: u32 = 64;
/// Threads per block.
const THREADS: u32 = 256;

/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: i32 = 100;

/// Initializes the driver API and lists the devices.
pub(super) fn start(phase: &mut Phase<'_>) -> Tried<CudaStart> {
    let cuda = opened(phase)?;
    phase("listing the devices");
    let version = cuda.version()?;
    Ok(CudaStart {
        version: format!("{}.{}", version / 1000, version % 1000 / 10),
        uuids: cuda.devices()?.iter().map(uuid).collect::<Tried<_>>()?,
    })
}

fn opened(phase: &mut Phase<'_>) -> Tried<Cuda> {
    phase("opening `libcuda.so.1`");
    let cuda = Cuda::open(LIBRARY)?;
    phase(INIT);
    cuda.init()?;
    Ok(cuda)
}

/// Returns the UUID without the prefix for the device kind.
fn uuid(device: &Device<'_>) -> Tried<String> {
    let hex = format!("{:032x}", u128::from_be_bytes(device.uuid()?));
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &hex[part]);
    Ok(parts.join("-"))
}

/// Computes on the only device that is visible in this process. Its UUID should be `asked`.
pub(super) fn compute(asked: &str, phase: &mut Phase<'_>) -> Tried<CudaWork> {
    let begin = Instant::now();
    let other = |found: &str| CudaFault::OtherDevice {
        found: found.to_owned(),
    };
    let cuda = opened(phase).map_err(|fault| match fault {
        // An earlier process listed devices, so this error means that none of them has this UUID.
        CudaFault::Returned {
            code: NO_DEVICE, ..
        } => other("no device"),
        fault => fault,
    })?;
    phase("listing the devices");
    let devices = cuda.devices()?;
    let uuids: Vec<String> = devices.iter().map(uuid).collect::<Tried<_>>()?;
    let ([device], [uuid]) = (&devices[..], &uuids[..]) else {
        return Err(other(&uuids.join(", ")));
    };
    if !is_same(asked, uuid) {
        return Err(other(uuid));
    }
    phase("reading the device properties");
    let (major, minor) = device.capability()?;
    let (name, memory) = (device.name()?, device.memory()?);
    phase(CONTEXT);
    let context = device.context()?;
    copies(&context, phase)?;
    computes(&context, phase)?;
    Ok(CudaWork {
        name,
        compute_capability: format!("{major}.{minor}"),
        memory_bytes: memory as u64,
        seconds: begin.elapsed().as_secs_f64(),
    })
}

/// Whether the requested NVML UUID and the CUDA UUID are the same. Before driver 470, NVML
/// identifies a MIG device by its GPU and two numbers. They cannot be compared with the CUDA UUID,
/// so they are accepted.
fn is_same(asked: &str, uuid: &str) -> bool {
    let plain = bare_uuid(asked);
    plain.contains('/') || plain.eq_ignore_ascii_case(uuid)
}

/// Writes, copies, reads back and compares.
fn copies(context: &Context<'_>, phase: &mut Phase<'_>) -> Tried<()> {
    phase("allocating memory");
    let (first, second) = (context.memory(COPIED)?, context.memory(COPIED)?);
    phase("copying to the GPU and back");
    // The second pass inverts all bits, so that each bit is copied as 0 and as 1.
    for flip in [0, u32::MAX] {
        let sent = numbers(COPIED, 1, flip);
        let mut received = vec![0; COPIED];
        context.write(&first, &sent)?;
        context.copy(&second, &first)?;
        context.finish()?;
        context.read(&mut received, &second)?;
        if let Some(at) = difference(&sent, &received) {
            let at = (at * size_of::<u32>()) as u64;
            return Err(CudaFault::WrongCopy { at });
        }
    }
    Ok(())
}

/// Runs the kernel and compares with the CPU result.
fn computes(context: &Context<'_>, phase: &mut Phase<'_>) -> Tried<()> {
    phase("compiling the kernel");
    let kernel = context.compile(PTX, KERNEL)?;
    phase("running the kernel");
    let (to, from) = (context.memory(COMPUTED)?, context.memory(COMPUTED)?);
    let given = numbers(COMPUTED, 2, 0);
    context.write(&from, &given)?;
    context.launch(&kernel, (&to, &from), ROUNDS, THREADS)?;
    context.finish()?;
    let mut result = vec![0; COMPUTED];
    context.read(&mut result, &to)?;
    let right: Vec<u32> = (given.iter())
        .map(|number| expected(*number, ROUNDS))
        .collect();
    match difference(&right, &result) {
        None => Ok(()),
        Some(at) => Err(CudaFault::WrongResult { at: at as u64 }),
    }
}

/// Returns pseudorandom numbers, each XORed with `flip`.
fn numbers(count: usize, seed: u32, flip: u32) -> Vec<u32> {
    let sequence = std::iter::successors(Some(next(seed)), |number| Some(next(*number)));
    sequence.take(count).map(|number| number ^ flip).collect()
}

/// One step of a linear congruential generator, with the constants of `kernel.ptx`.
fn next(number: u32) -> u32 {
    number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223)
}

/// Returns the index of the first difference.
fn difference(left: &[u32], right: &[u32]) -> Option<usize> {
    // Compare all numbers first, because comparing one by one is slow.
    if left == right {
        return None;
    }
    (left.iter().zip(right)).position(|(left, right)| left != right)
}

/// The computation of `kernel.ptx`.
fn expected(mut number: u32, rounds: u32) -> u32 {
    let mut sum = 1.0_f32;
    for _ in 0..rounds {
        number = next(number);
        // The conversion is exact, because the value has 24 bits, like the mantissa of a float.
        sum = sum.mul_add(0.5, (number >> 8) as f32);
    }
    number ^ sum.to_bits()
}

#[cfg(test)]
mod tests {
    use super::{COMPUTED, KERNEL, PTX, difference, expected, is_same};

    #[test]
    fn ptx_contains_the_requested_kernel() {
        let (ptx, name) = (PTX.to_str().expect("text"), KERNEL.to_str().expect("text"));
        assert!(ptx.contains(&format!(".visible .entry {name}(")), "{ptx}");
        assert!(u32::try_from(COMPUTED).is_ok());
    }

    #[test]
    fn cpu_result_is_computed_step_by_step() {
        assert_eq!(expected(0, 0), 1.0_f32.to_bits());
        // One step: 1013904223 >> 8 is 3960563. Adding 0.5 is exact.
        assert_eq!(expected(0, 1), 1_013_904_223 ^ 3_960_563.5_f32.to_bits());
    }

    #[test]
    fn uuids_are_compared_without_the_kind() {
        let uuid = "11111111-2222-3333-4444-555555555555";
        assert!(is_same(&format!("GPU-{uuid}"), uuid));
        assert!(is_same(&format!("MIG-{uuid}"), uuid));
        assert!(!is_same("GPU-11111111-2222-3333-4444-555555555556", uuid));
        // The format of drivers before 470.
        assert!(is_same(&format!("MIG-GPU-{uuid}/7/0"), "anything"));
    }

    #[test]
    fn first_difference_is_found() {
        assert_eq!(difference(&[1, 2, 3], &[1, 2, 3]), None);
        assert_eq!(difference(&[1, 2, 3], &[1, 0, 0]), Some(1));
    }
}

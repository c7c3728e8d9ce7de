//! What a child process does with CUDA: list, compute on one device, copy between devices.

use std::ffi::CStr;
use std::time::{Duration, Instant};

use super::ffi::{Attribute, Context, Cuda, Device, Memory, Pinned, Tried};
use crate::host::{CudaCause, CudaFault, CudaPeer, CudaStart, CudaWork};

/// The kernel, with the end that C expects.
const PTX: &[u8] = concat!(include_str!("kernel.ptx"), "\0").as_bytes();
/// Its name.
const KERNEL: &CStr = c"gpu_bootstrap_probe";

/// Numbers that are copied between host and device: 16 MiB.
const COPIED: usize = 4 << 20;
/// Bytes that are copied within a device: more than most second-level caches hold.
const ON_DEVICE: usize = 64 << 20;
/// How often a copy is repeated for its figure.
const REPEATS: u32 = 4;
/// Numbers that the kernel computes: blocks for every multiprocessor of the largest GPUs.
const COMPUTED: usize = 64 << 10;
/// Steps for each of them.
const ROUNDS: u32 = 64;
/// Threads of a block.
const THREADS: u32 = 256;

/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: i32 = 100;
/// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`.
const ALREADY_ENABLED: i32 = 704;
/// `CUDA_ERROR_TOO_MANY_PEERS`.
const TOO_MANY_PEERS: i32 = 711;

/// Starts the driver API and lists the devices.
pub(super) fn start(cuda: &Cuda<'_>) -> Tried<CudaStart> {
    cuda.init()?;
    let version = cuda.version()?;
    let devices = devices(cuda)?;
    Ok(CudaStart {
        version: format!("{}.{}", version / 1000, version % 1000 / 10),
        uuids: devices.iter().map(uuid).collect::<Tried<_>>()?,
    })
}

fn devices<'c>(cuda: &'c Cuda<'c>) -> Tried<Vec<Device<'c>>> {
    (0..cuda.count()?).map(|index| cuda.device(index)).collect()
}

/// The UUID without the prefix that tells its kind.
fn uuid(device: &Device<'_>) -> Tried<String> {
    let hex = format!("{:032x}", u128::from_be_bytes(device.uuid()?));
    let parts = [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ];
    Ok(parts.join("-"))
}

/// Computes on the only device that this process sees, which should be the one with this UUID.
pub(super) fn compute(cuda: &Cuda<'_>, asked: &str) -> Tried<CudaWork> {
    let begin = Instant::now();
    let other = |found| CudaFault::new(CudaCause::OtherDevices { found });
    let listed = cuda.init().and_then(|()| devices(cuda));
    let devices = match listed {
        // The list of all devices was not empty, so CUDA does not know this one.
        Err(CudaFault {
            cause: CudaCause::Returned { code: NO_DEVICE },
            ..
        }) => Vec::new(),
        listed => listed?,
    };
    let uuids: Vec<String> = devices.iter().map(uuid).collect::<Tried<_>>()?;
    let ([device], [uuid]) = (&devices[..], &uuids[..]) else {
        return Err(other(uuids));
    };
    if !is_same(asked, uuid) {
        return Err(other(uuids));
    }
    let attribute = |which| device.attribute(which);
    let clock = |which| Ok(megahertz(device.attribute(which)?));
    let mut work = CudaWork {
        uuid: asked.to_owned(),
        name: device.name()?,
        pci_address: device.bus_id()?.parse().ok(),
        compute_capability: format!(
            "{}.{}",
            attribute(Attribute::CapabilityMajor)?,
            attribute(Attribute::CapabilityMinor)?
        ),
        memory_bytes: device.memory()? as u64,
        multiprocessors: attribute(Attribute::Multiprocessors)?.unsigned_abs(),
        clock_mhz: clock(Attribute::ClockRate)?,
        memory_clock_mhz: clock(Attribute::MemoryClockRate)?,
        to_device_gb_s: 0.0,
        from_device_gb_s: 0.0,
        on_device_gb_s: 0.0,
        seconds: 0.0,
    };
    let context = device.context()?;
    memory(&context, &mut work)?;
    kernel(&context)?;
    work.seconds = begin.elapsed().as_secs_f64();
    Ok(work)
}

/// Whether CUDA's UUID is the one that NVML has. Drivers before 470 name a MIG device by its GPU and
/// two numbers, with which CUDA's cannot be compared.
fn is_same(asked: &str, uuid: &str) -> bool {
    let plain = asked.trim_start_matches("GPU-").trim_start_matches("MIG-");
    plain.contains('/') || plain.eq_ignore_ascii_case(uuid)
}

/// MHz of kHz; a driver that does not tell says 0.
fn megahertz(kilohertz: i32) -> Option<u32> {
    u32::try_from(kilohertz / 1000)
        .ok()
        .filter(|clock| *clock > 0)
}

/// Writes, copies and reads back, and compares; then the figures.
fn memory(context: &Context<'_>, work: &mut CudaWork) -> Tried<()> {
    let (first, second) = (context.memory(ON_DEVICE)?, context.memory(ON_DEVICE)?);
    let (mut sent, mut received) = (context.pinned(COPIED)?, context.pinned(COPIED)?);
    // Each bit once as it is and once inverted.
    for flip in [0, u32::MAX] {
        fill(&mut sent, 1, flip);
        context.write(&first, &sent)?;
        context.copy(&second, &first)?;
        context.finish()?;
        context.read(&mut received, &second)?;
        compare(&sent, &received)?;
    }
    let host = COPIED * size_of::<u32>();
    let copy = || context.copy(&second, &first);
    work.to_device_gb_s = speed(context, host, || context.write(&first, &sent))?;
    work.from_device_gb_s = speed(context, host, || context.read(&mut received, &first))?;
    work.on_device_gb_s = speed(context, ON_DEVICE, copy)?;
    Ok(())
}

/// Fills memory with numbers that differ from place to place.
fn fill(numbers: &mut Pinned<'_>, seed: u32, flip: u32) {
    let mut number = seed;
    for place in numbers.numbers_mut() {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *place = number ^ flip;
    }
}

fn compare(sent: &Pinned<'_>, received: &Pinned<'_>) -> Tried<()> {
    match difference(sent.numbers(), received.numbers()) {
        None => Ok(()),
        Some(at) => Err(CudaFault::new(CudaCause::WrongCopy {
            at: (at * size_of::<u32>()) as u64,
        })),
    }
}

fn difference(left: &[u32], right: &[u32]) -> Option<usize> {
    // At once first: numbers one by one take long.
    if left == right {
        return None;
    }
    left.iter()
        .zip(right)
        .position(|(left, right)| left != right)
}

/// 10⁹ bytes in a second.
fn speed(context: &Context<'_>, bytes: usize, mut copy: impl FnMut() -> Tried<()>) -> Tried<f64> {
    context.finish()?;
    let begin = Instant::now();
    for _ in 0..REPEATS {
        copy()?;
    }
    context.finish()?;
    Ok(per_second(bytes * REPEATS as usize, begin.elapsed()))
}

fn per_second(bytes: usize, time: Duration) -> f64 {
    let seconds = time.as_secs_f64().max(1e-9);
    bytes as f64 / seconds / 1e9
}

/// Runs the kernel and computes the same on the CPU.
fn kernel(context: &Context<'_>) -> Tried<()> {
    let ptx = CStr::from_bytes_with_nul(PTX).unwrap_or(c"");
    let kernel = context.compile(ptx, KERNEL)?;
    let bytes = COMPUTED * size_of::<u32>();
    let (to, from): (Memory<'_>, Memory<'_>) = (context.memory(bytes)?, context.memory(bytes)?);
    let (mut given, mut result) = (context.pinned(COMPUTED)?, context.pinned(COMPUTED)?);
    fill(&mut given, 2, 0);
    context.write(&from, &given)?;
    context.launch(&kernel, (&to, &from), ROUNDS, THREADS)?;
    context.finish()?;
    context.read(&mut result, &to)?;
    let wrong = (given.numbers().iter().zip(result.numbers()))
        .position(|(given, result)| expected(*given, ROUNDS) != *result);
    match wrong {
        None => Ok(()),
        Some(at) => Err(CudaFault::new(CudaCause::WrongResult { at: at as u64 })),
    }
}

/// What `kernel.ptx` computes.
fn expected(mut number: u32, rounds: u32) -> u32 {
    let mut sum = 1.0_f32;
    for _ in 0..rounds {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Exact: it has 24 bits, as a float has.
        sum = sum.mul_add(0.5, (number >> 8) as f32);
    }
    number ^ sum.to_bits()
}

/// One GPU among several.
struct Peer<'c, 'u> {
    uuid: &'u str,
    device: Device<'c>,
    context: Context<'c>,
    /// Its own numbers.
    home: Memory<'c>,
    /// What comes from others.
    inbox: Memory<'c>,
    seed: u32,
}

/// Copies from each GPU to each other one that can use its memory directly. `about` is told of which
/// devices the next calls are.
pub(super) fn peers(
    cuda: &Cuda<'_>,
    uuids: &[String],
    about: &(dyn Fn(&[&str]) + Sync),
) -> Tried<Vec<CudaPeer>> {
    cuda.init()?;
    let mut wanted = Vec::new();
    for device in devices(cuda)? {
        let found = uuid(&device)?;
        if let Some(asked) = uuids.iter().find(|asked| is_same(asked, &found)) {
            wanted.push((asked.as_str(), device));
        }
    }
    let peers = contexts(&wanted, about)?;
    let mut found = Vec::new();
    for to in &peers {
        let mut received = to.context.pinned(COPIED)?;
        for from in &peers {
            if from.seed == to.seed {
                continue;
            }
            let both = [from.uuid, to.uuid];
            about(&both);
            let gb_s = between(cuda, from, to, &mut received).map_err(|fault| fault.of(both))?;
            found.push(CudaPeer {
                from: from.uuid.to_owned(),
                to: to.uuid.to_owned(),
                gb_s,
            });
        }
    }
    Ok(found)
}

/// Contexts and memory of all GPUs at the same time: each takes some hundred milliseconds.
fn contexts<'c, 'u>(
    wanted: &[(&'u str, Device<'c>)],
    about: &(dyn Fn(&[&str]) + Sync),
) -> Tried<Vec<Peer<'c, 'u>>> {
    let one = |uuid: &'u str, device: Device<'c>, seed: u32| {
        about(&[uuid]);
        let context = device.context()?;
        let bytes = COPIED * size_of::<u32>();
        let (home, inbox) = (context.memory(bytes)?, context.memory(bytes)?);
        let mut own = context.pinned(COPIED)?;
        fill(&mut own, seed, 0);
        context.write(&home, &own)?;
        Ok(Peer {
            uuid,
            device,
            context,
            home,
            inbox,
            seed,
        })
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (wanted.iter().zip(1_u32..))
            .map(|(&(uuid, device), seed)| (uuid, scope.spawn(move || one(uuid, device, seed))))
            .collect();
        (threads.into_iter())
            .map(|(uuid, thread)| match thread.join() {
                Ok(peer) => peer.map_err(|fault: CudaFault| fault.of([uuid])),
                Err(panic) => std::panic::resume_unwind(panic),
            })
            .collect()
    })
}

/// The figure of a copy that was compared; `None` if there is no direct access.
fn between(
    cuda: &Cuda<'_>,
    from: &Peer<'_, '_>,
    to: &Peer<'_, '_>,
    received: &mut Pinned<'_>,
) -> Tried<Option<f64>> {
    if !to.device.reaches(&from.device)? {
        return Ok(None);
    }
    match to.context.reach(&from.context) {
        Err(CudaFault {
            cause: CudaCause::Returned {
                code: TOO_MANY_PEERS,
            },
            ..
        }) => return Ok(None),
        Err(CudaFault {
            cause: CudaCause::Returned {
                code: ALREADY_ENABLED,
            },
            ..
        }) => {}
        opened => opened?,
    }
    let copy = || cuda.copy_to_peer((&to.context, &to.inbox), (&from.context, &from.home));
    copy()?;
    to.context.finish()?;
    from.context.finish()?;
    to.context.read(received, &to.inbox)?;
    let mut number = from.seed;
    for (at, place) in received.numbers().iter().enumerate() {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if *place != number {
            let at = (at * size_of::<u32>()) as u64;
            return Err(CudaFault::in_call(
                "cuMemcpyPeer",
                CudaCause::WrongCopy { at },
            ));
        }
    }
    let begin = Instant::now();
    copy()?;
    to.context.finish()?;
    from.context.finish()?;
    Ok(Some(per_second(COPIED * size_of::<u32>(), begin.elapsed())))
}

#[cfg(test)]
mod tests {
    use super::{COMPUTED, KERNEL, PTX, difference, expected, is_same, megahertz};

    #[test]
    fn the_kernel_is_the_one_that_is_asked_for() {
        let ptx = std::str::from_utf8(PTX).expect("text");
        let name = KERNEL.to_str().expect("text");
        assert!(ptx.contains(&format!(".visible .entry {name}(")), "{ptx}");
        assert!(ptx.ends_with('\0') && ptx.matches('\0').count() == 1);
        assert!(u32::try_from(COMPUTED).is_ok());
    }

    #[test]
    fn the_cpu_computes_step_by_step() {
        assert_eq!(expected(0, 0), 1.0_f32.to_bits());
        // One step: 1013904223 >> 8 is 3960563, and 0.5 more than that is not lost.
        assert_eq!(expected(0, 1), 1_013_904_223 ^ 3_960_563.5_f32.to_bits());
    }

    #[test]
    fn uuids_are_compared_without_their_kind() {
        let uuid = "11111111-2222-3333-4444-555555555555";
        assert!(is_same(&format!("GPU-{uuid}"), uuid));
        assert!(is_same(&format!("MIG-{uuid}"), uuid));
        assert!(!is_same("GPU-11111111-2222-3333-4444-555555555556", uuid));
        // The form of drivers before 470.
        assert!(is_same(&format!("MIG-GPU-{uuid}/7/0"), "anything"));
    }

    #[test]
    fn the_first_difference_is_found() {
        assert_eq!(difference(&[1, 2, 3], &[1, 2, 3]), None);
        assert_eq!(difference(&[1, 2, 3], &[1, 0, 0]), Some(1));
    }

    #[test]
    fn a_clock_that_is_not_told_is_none() {
        assert_eq!(megahertz(1_980_000), Some(1980));
        assert_eq!(megahertz(0), None);
    }
}

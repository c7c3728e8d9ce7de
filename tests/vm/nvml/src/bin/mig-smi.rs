//! A fake of the commands of `nvidia-smi` that change MIG, through the installed `libnvidia-ml.so.1`, which must be the fake one,
//! because a reset is a private function. Messages: NVIDIA's Multi-Instance GPU User Guide. The exit codes are NVML's.

use std::ffi::{CStr, CString, c_char};
use std::io::Write as _;
use std::process::ExitCode;
use std::ptr::null_mut;

use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlComputeInstanceProfileInfo_st, nvmlDevice_t, nvmlGpuInstance_t,
    nvmlGpuInstanceInfo_st, nvmlGpuInstancePlacement_st, nvmlGpuInstanceProfileInfo_v2_st,
};

const LIBRARY: &str = "libnvidia-ml.so.1";

/// The numbers of profiles, `NVML_GPU_INSTANCE_PROFILE_COUNT` and `NVML_COMPUTE_INSTANCE_PROFILE_COUNT` of `nvml.h`.
const GPU_PROFILES: u32 = 18;
const COMPUTE_PROFILES: u32 = 9;

/// The most instances of a profile.
const MOST: usize = 7;

/// An NVML code with the failed action.
struct Failure(u32, String);

type Result<T = ()> = std::result::Result<T, Failure>;

struct Nvml {
    lib: NvmlLib,
    reset: unsafe extern "C" fn(nvmlDevice_t) -> u32,
}

fn main() -> ExitCode {
    let args = std::env::args_os().skip(1);
    let args: Vec<String> = args
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = Nvml::open().and_then(|nvml| nvml.run(&words).map_err(|failure| nvml.told(failure)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(code, what)) => {
            say(&what);
            ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
        }
    }
}

fn say(text: &str) {
    // If standard output is closed, the exit code is still correct.
    let _closed = writeln!(std::io::stdout(), "{text}");
}

fn failure(code: u32, what: &str) -> Failure {
    Failure(code, what.to_owned())
}

/// SAFETY of all calls: the handles are from the library, the structs are numbers, for which zeros are valid, and the arrays have
/// room for as many handles as a profile allows.
impl Nvml {
    fn open() -> Result<Self> {
        let missing = |error| Failure(12, format!("{LIBRARY}: {error}"));
        // SAFETY: as above.
        unsafe {
            let library = libloading::Library::new(LIBRARY).map_err(missing)?;
            let reset = *library.get(b"fakeDeviceReset\0").map_err(missing)?;
            let lib = NvmlLib::from_library(library).map_err(missing)?;
            match lib.nvmlInit_v2() {
                0 => Ok(Self { lib, reset }),
                code => Err(Failure(code, format!("Failed to initialize NVML: {code}"))),
            }
        }
    }

    /// Adds the text of the code.
    fn told(&self, Failure(code, what): Failure) -> Failure {
        // SAFETY: the library returns a constant text.
        let text = unsafe { CStr::from_ptr(self.lib.nvmlErrorString(code)) };
        Failure(code, format!("{what}: {}", text.to_string_lossy()))
    }

    fn run(&self, words: &[&str]) -> Result {
        match *words {
            ["-L"] => self.list(),
            ["-i", gpu, "-mig", mode] => self.set_mode(gpu, mode == "1"),
            ["-r", "-i", gpus] => gpus.split(',').try_for_each(|gpu| {
                let failed = format!("GPU {gpu} could not be reset");
                // SAFETY: see `impl`.
                check(unsafe { (self.reset)(self.gpu(gpu)?) }, &failed)?;
                say(&format!("GPU {gpu} was successfully reset."));
                Ok(())
            }),
            ["mig", "-i", gpu, "-dci"] => self.destroy(self.gpu(gpu)?, false),
            ["mig", "-i", gpu, "-dgi"] => self.destroy(self.gpu(gpu)?, true),
            ["mig", "-i", gpu, "-cgi", profiles] => self.create(self.gpu(gpu)?, profiles, false),
            ["mig", "-i", gpu, "-cgi", profiles, "-C"] => {
                self.create(self.gpu(gpu)?, profiles, true)
            }
            ["mig", "-i", gpu, "-gi", id, "-cci", profiles] => {
                let id = id.parse().map_err(|_| failure(2, id))?;
                let mut instance = null_mut();
                // SAFETY: see `impl`.
                let code = unsafe {
                    self.lib
                        .nvmlDeviceGetGpuInstanceById(self.gpu(gpu)?, id, &raw mut instance)
                };
                check(code, &format!("Unable to find GPU instance ID {id}"))?;
                profiles
                    .split(',')
                    .try_for_each(|profile| self.create_compute(instance, profile))
            }
            _ => Err(failure(2, &words.join(" "))),
        }
    }

    fn gpu(&self, address: &str) -> Result<nvmlDevice_t> {
        let text = CString::new(address).map_err(|_| failure(2, address))?;
        let mut gpu = null_mut();
        // SAFETY: see `impl`.
        let code = unsafe {
            self.lib
                .nvmlDeviceGetHandleByPciBusId_v2(text.as_ptr(), &raw mut gpu)
        };
        check(code, address).map(|()| gpu)
    }

    fn list(&self) -> Result {
        let mut count = 0;
        // SAFETY: see `impl`.
        unsafe {
            check(self.lib.nvmlDeviceGetCount_v2(&raw mut count), "count")?;
            for index in 0..count {
                let mut gpu = null_mut();
                check(
                    self.lib.nvmlDeviceGetHandleByIndex_v2(index, &raw mut gpu),
                    "index",
                )?;
                say(&format!(
                    "GPU {index}: {} (UUID: {})",
                    self.name(gpu)?,
                    self.uuid(gpu)?
                ));
                for device in 0..MOST as u32 {
                    let mut part = null_mut();
                    if self
                        .lib
                        .nvmlDeviceGetMigDeviceHandleByIndex(gpu, device, &raw mut part)
                        == 0
                    {
                        let name = self.name(part)?;
                        let profile = name.rsplit(' ').next().unwrap_or_default();
                        say(&format!(
                            "  MIG {profile:<11} Device {device:2}: (UUID: {})",
                            self.uuid(part)?
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    fn name(&self, device: nvmlDevice_t) -> Result<String> {
        // SAFETY: see `impl`.
        text(|to, room| unsafe { self.lib.nvmlDeviceGetName(device, to, room) })
    }

    fn uuid(&self, device: nvmlDevice_t) -> Result<String> {
        // SAFETY: see `impl`.
        text(|to, room| unsafe { self.lib.nvmlDeviceGetUUID(device, to, room) })
    }

    fn set_mode(&self, address: &str, enabled: bool) -> Result {
        let mut status = 0;
        let gpu = self.gpu(address)?;
        let failed = format!("Unable to change the MIG mode of GPU {address}");
        // SAFETY: see `impl`.
        check(
            unsafe {
                self.lib
                    .nvmlDeviceSetMigMode(gpu, enabled.into(), &raw mut status)
            },
            &failed,
        )?;
        if status != 0 {
            let to = if enabled { "enable" } else { "disable" };
            let pending = format!("Warning: MIG mode is in pending {to} state for GPU {address}");
            let Failure(_, text) = self.told(Failure(status, pending));
            say(&text);
            say("Reboot the system or try nvidia-smi --gpu-reset to make MIG mode effective");
        }
        Ok(())
    }

    /// The handles of all GPU instances.
    fn instances(&self, gpu: nvmlDevice_t) -> Result<Vec<nvmlGpuInstance_t>> {
        let mut found = Vec::new();
        for profile in self.profiles(gpu) {
            let (mut handles, mut count) = ([null_mut(); MOST], 0);
            // SAFETY: see `impl`.
            let code = unsafe {
                self.lib.nvmlDeviceGetGpuInstances(
                    gpu,
                    profile.id,
                    handles.as_mut_ptr(),
                    &raw mut count,
                )
            };
            check(code, "Unable to list the GPU instances")?;
            found.extend(handles.into_iter().take(count as usize));
        }
        Ok(found)
    }

    /// The profiles that the GPU supports.
    fn profiles(&self, gpu: nvmlDevice_t) -> Vec<nvmlGpuInstanceProfileInfo_v2_st> {
        // SAFETY: see `impl`.
        let info = |index| unsafe {
            let mut info: nvmlGpuInstanceProfileInfo_v2_st = std::mem::zeroed();
            info.version = fake_nvml::version_of::<nvmlGpuInstanceProfileInfo_v2_st>(2);
            let code = self
                .lib
                .nvmlDeviceGetGpuInstanceProfileInfoV(gpu, index, &raw mut info);
            (code == 0).then_some(info)
        };
        (0..GPU_PROFILES).filter_map(info).collect()
    }

    /// Destroys all compute instances, or all GPU instances.
    fn destroy(&self, gpu: nvmlDevice_t, whole: bool) -> Result {
        let mut destroyed = false;
        for instance in self.instances(gpu)? {
            // SAFETY: see `impl`.
            unsafe {
                if whole {
                    destroyed = true;
                    let code = self.lib.nvmlGpuInstanceDestroy(instance);
                    check(code, "Unable to destroy GPU instances")?;
                    continue;
                }
                for kind in 0..COMPUTE_PROFILES {
                    let (mut parts, mut count) = ([null_mut(); MOST], 0);
                    let all = parts.as_mut_ptr();
                    if self.lib.nvmlGpuInstanceGetComputeInstances(
                        instance,
                        kind,
                        all,
                        &raw mut count,
                    ) != 0
                    {
                        continue;
                    }
                    for part in parts.into_iter().take(count as usize) {
                        destroyed = true;
                        let code = self.lib.nvmlComputeInstanceDestroy(part);
                        check(code, "Unable to destroy compute instances")?;
                    }
                }
            }
        }
        match (destroyed, whole) {
            (true, _) => Ok(()),
            (false, true) => Err(failure(6, "No GPU instances found")),
            (false, false) => Err(failure(6, "No compute instances found")),
        }
    }

    /// Creates GPU instances, each `PROFILE` or `PROFILE:START`, and compute instances of the same size.
    fn create(&self, gpu: nvmlDevice_t, profiles: &str, with_compute: bool) -> Result {
        for wanted in profiles.split(',') {
            let (name, start) = match wanted.split_once(':') {
                Some((name, start)) => (name, Some(start.parse().map_err(|_| failure(2, start))?)),
                None => (wanted, None),
            };
            let all = self.profiles(gpu);
            let profile = all.iter().find(|info| name_of(&info.name) == name);
            let profile =
                profile.ok_or_else(|| Failure(2, format!("Profile {name} is not supported")))?;
            let failed = format!("Unable to create a GPU instance on GPU  0 using profile {name}");
            let (id, mut instance) = (profile.id, null_mut());
            // SAFETY: see `impl`.
            unsafe {
                let code = match start {
                    Some(start) => {
                        let size = self.size_of(gpu, id)?;
                        let placement = nvmlGpuInstancePlacement_st { start, size };
                        self.lib.nvmlDeviceCreateGpuInstanceWithPlacement(
                            gpu,
                            id,
                            &raw const placement,
                            &raw mut instance,
                        )
                    }
                    None => self
                        .lib
                        .nvmlDeviceCreateGpuInstance(gpu, id, &raw mut instance),
                };
                check(code, &failed)?;
                let mut info: nvmlGpuInstanceInfo_st = std::mem::zeroed();
                check(
                    self.lib.nvmlGpuInstanceGetInfo(instance, &raw mut info),
                    &failed,
                )?;
                say(&format!(
                    "Successfully created GPU instance ID {:2} on GPU  0 using profile MIG {name} (ID {id:2})",
                    info.id
                ));
            }
            if with_compute {
                self.create_compute(instance, name)?;
            }
        }
        Ok(())
    }

    /// The memory slices of a profile.
    fn size_of(&self, gpu: nvmlDevice_t, id: u32) -> Result<u32> {
        let none = nvmlGpuInstancePlacement_st { start: 0, size: 0 };
        let (mut placements, mut count) = ([none; MOST], MOST as u32);
        // SAFETY: see `impl`.
        let code = unsafe {
            let all = placements.as_mut_ptr();
            self.lib
                .nvmlDeviceGetGpuInstancePossiblePlacements_v2(gpu, id, all, &raw mut count)
        };
        check(code, "Unable to list placements").map(|()| placements[0].size)
    }

    fn create_compute(&self, instance: nvmlGpuInstance_t, profile: &str) -> Result {
        let failed = format!("Unable to create a compute instance using profile {profile}");
        // `2c.3g.40gb`, or `3g.40gb` with all slices of the GPU instance.
        let slices = profile
            .split(['c', 'g'])
            .next()
            .and_then(|slices| slices.parse().ok());
        let slices: u32 = slices.ok_or_else(|| failure(2, profile))?;
        // SAFETY: see `impl`.
        unsafe {
            for kind in 0..COMPUTE_PROFILES {
                let mut info: nvmlComputeInstanceProfileInfo_st = std::mem::zeroed();
                let code = self.lib.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                    instance,
                    kind,
                    0,
                    &raw mut info,
                );
                if code == 0 && info.sliceCount == slices {
                    let mut part = null_mut();
                    let code = self.lib.nvmlGpuInstanceCreateComputeInstance(
                        instance,
                        info.id,
                        &raw mut part,
                    );
                    return check(code, &failed);
                }
            }
        }
        Err(Failure(2, failed))
    }
}

fn check(code: u32, failed: &str) -> Result {
    match code {
        0 => Ok(()),
        code => Err(failure(code, failed)),
    }
}

/// `1g.10gb` of the name `MIG 1g.10gb`.
fn name_of(name: &[c_char]) -> String {
    let bytes = name.iter().take_while(|byte| **byte != 0);
    let text: String = bytes.map(|byte| char::from(*byte as u8)).collect();
    text.trim_start_matches("MIG ").to_owned()
}

fn text(ask: impl FnOnce(*mut c_char, u32) -> u32) -> Result<String> {
    let mut buffer = [0; 96];
    check(ask(buffer.as_mut_ptr(), 96), "text")?;
    Ok(buffer
        .iter()
        .take_while(|byte| **byte != 0)
        .map(|byte| char::from(*byte as u8))
        .collect())
}

//! Changes of MIG: the mode, and the GPU and compute instances.
//!
//! Semantics and errors: the comments in NVIDIA's `nvml.h` (github.com/NVIDIA/go-nvml v0.13.3-1, `pkg/nvml/nvml.h`). The driver
//! chooses the position of an instance by an algorithm that is not public. This one uses the last free position. With the first one,
//! `1g.10gb` would take the only position of `4g.40gb`.

use crate::code::Code;
use crate::gpu::{Gpu, GpuInstance, MigDevice};
use crate::mig::{Profile, profile, profiles};

/// The highest ID of a GPU instance whose numbers in `/dev/nvidia-caps` belong to the GPU.
const LAST_ID: u32 = 14;

/// Numbers in `/dev/nvidia-caps`: the first GPU instance of the first GPU, GPU instances, and GPUs. Source of the first two:
/// `/proc/driver/nvidia-caps/mig-minors` of a machine with one GPU. The last one, 15 times the second, is not verified.
const CAPABILITIES: [u32; 3] = [3, 9, 135];

type Result<T = (), E = Code> = std::result::Result<T, E>;

impl Gpu {
    /// Sets the pending MIG mode, and puts it into effect if possible.
    ///
    /// # Errors
    /// If MIG is not supported. The inner result is the status of the activation: the GPU is in use, or it is an Ampere GPU,
    /// which changes the mode at the next reset, as in a virtual machine with a passed-through GPU.
    pub fn set_mig_mode(&mut self, enabled: bool) -> Result<Result> {
        self.mig_supported()?;
        self.mig.pending = Some(enabled);
        if self.mig.enabled == enabled {
            return Ok(Ok(()));
        }
        if self.capability().0 == 8 {
            return Ok(Err(match self.is_in_use() {
                true => Code::IN_USE,
                false => Code::RESET_REQUIRED,
            }));
        }
        Ok(self.reset())
    }

    /// Destroys all instances, and puts the pending MIG mode into effect.
    ///
    /// # Errors
    /// If the GPU is in use.
    pub fn reset(&mut self) -> Result {
        if self.is_in_use() {
            return Err(Code::IN_USE);
        }
        self.mig.devices.clear();
        self.mig.gpu_instances.clear();
        self.mig.enabled = self.mig.pending.unwrap_or(self.mig.enabled);
        Ok(())
    }

    /// Creates a GPU instance with this profile ID, at this memory slice if specified, and returns its ID.
    ///
    /// # Errors
    /// If MIG is disabled, the profile or the position is invalid, or the instance does not fit.
    pub fn create_gpu_instance(&mut self, profile_id: u32, start: Option<u32>) -> Result<u32> {
        self.mig_enabled()?;
        let profile = self.gpu_profile(profile_id)?;
        if start.is_some_and(|start| !profile.starts.contains(&start)) {
            return Err(Code::INVALID_ARGUMENT);
        }
        let start = self
            .place(profile, start)
            .ok_or(Code::INSUFFICIENT_RESOURCES)?;
        let is_free = |id: &u32| self.mig.gpu_instances.iter().all(|other| other.id != *id);
        let id = (1..=LAST_ID).find(is_free);
        let id = id.ok_or(Code::INSUFFICIENT_RESOURCES)?;
        let profile = profile.name(self.memory_mib);
        self.mig
            .gpu_instances
            .push(GpuInstance { profile, id, start });
        Ok(id)
    }

    /// Creates a compute instance with this `NVML_COMPUTE_INSTANCE_PROFILE_…` in a GPU instance, and returns its ID.
    ///
    /// # Errors
    /// If the profile is not supported, or the instance does not fit.
    pub fn create_compute_instance(&mut self, gpu_instance: u32, kind: u32) -> Result<u32> {
        let whole = self.profile_of_instance(gpu_instance)?;
        let slices = whole.compute_slices_of(kind).ok_or(Code::NOT_SUPPORTED)?;
        let others: Vec<&MigDevice> = self.parts_of(gpu_instance).collect();
        let used: u32 = others
            .iter()
            .filter_map(|part| self.profile(&part.profile))
            .map(|profile| profile.compute_slices)
            .sum();
        if used + slices > whole.slices {
            return Err(Code::INSUFFICIENT_RESOURCES);
        }
        let is_free = |id: &u32| others.iter().all(|other| other.compute_instance != *id);
        let id = (0..whole.slices).find(is_free).unwrap_or_default();
        let (domain, bus, device) = self.address();
        let part = whole.with_compute(slices);
        self.mig.devices.push(MigDevice {
            profile: part.name(self.memory_mib),
            uuid: format!(
                "MIG-00000000-0000-5{gpu_instance:03x}-80{id:02x}-{domain:08x}{bus:02x}{device:02x}"
            ),
            gpu_instance: Some(gpu_instance),
            compute_instance: id,
            capabilities: self.mig.nodes_of.map_or_else(Vec::new, |index| {
                let of_instance =
                    CAPABILITIES[0] + CAPABILITIES[1] * gpu_instance + CAPABILITIES[2] * index;
                vec![of_instance, of_instance + 1 + id]
            }),
        });
        Ok(id)
    }

    /// Destroys a compute instance.
    ///
    /// # Errors
    /// If the GPU is in use.
    pub fn destroy_compute_instance(&mut self, gpu_instance: u32, id: u32) -> Result {
        if self.is_in_use() {
            return Err(Code::IN_USE);
        }
        self.mig
            .devices
            .retain(|part| part.gpu_instance != Some(gpu_instance) || part.compute_instance != id);
        Ok(())
    }

    /// Destroys a GPU instance.
    ///
    /// # Errors
    /// If the GPU is in use, or the instance contains compute instances.
    pub fn destroy_gpu_instance(&mut self, id: u32) -> Result {
        if self.is_in_use() || self.parts_of(id).next().is_some() {
            return Err(Code::IN_USE);
        }
        self.mig.gpu_instances.retain(|instance| instance.id != id);
        Ok(())
    }

    /// Adds the GPU instances of MIG devices that were written by hand.
    pub(crate) fn add_instances_of_devices(&mut self) -> Result<(), String> {
        for part in self.mig.devices.clone() {
            let id = part.gpu_instance.unwrap_or_default();
            if self
                .mig
                .gpu_instances
                .iter()
                .any(|instance| instance.id == id)
            {
                continue;
            }
            let profile = self
                .profile(&part.profile)
                .ok_or_else(|| part.profile.clone())?;
            let whole = profile.with_compute(profile.slices);
            let start = self.place(whole, None);
            let start =
                start.ok_or_else(|| format!("the MIG device `{}` does not fit", part.profile))?;
            let profile = whole.name(self.memory_mib);
            self.mig
                .gpu_instances
                .push(GpuInstance { profile, id, start });
        }
        Ok(())
    }

    /// # Errors
    /// If the GPU does not support MIG.
    pub fn mig_supported(&self) -> Result {
        match self.mig.supported {
            Some(true) => Ok(()),
            _ => Err(Code::NOT_SUPPORTED),
        }
    }

    fn mig_enabled(&self) -> Result {
        match self.mig.enabled {
            true => self.mig_supported(),
            false => Err(Code::NOT_SUPPORTED),
        }
    }

    /// The profile with this name.
    pub fn profile(&self, name: &str) -> Option<Profile> {
        profile(name, self.memory_mib, self.mig.slices())
    }

    /// The profile of GPU instances with this ID.
    ///
    /// # Errors
    /// If there is none.
    pub fn gpu_profile(&self, id: u32) -> Result<Profile> {
        let mut all = profiles(self.mig.slices());
        all.find(|profile| profile.id == id)
            .ok_or(Code::INVALID_ARGUMENT)
    }

    /// The profile of the GPU instance with this ID.
    ///
    /// # Errors
    /// If there is none.
    pub fn profile_of_instance(&self, id: u32) -> Result<Profile> {
        let mut all = self.mig.gpu_instances.iter();
        let found = all
            .find(|instance| instance.id == id)
            .ok_or(Code::INVALID_ARGUMENT)?;
        self.profile(&found.profile).ok_or(Code::UNKNOWN)
    }

    /// The compute instances of a GPU instance.
    pub fn parts_of(&self, gpu_instance: u32) -> impl Iterator<Item = &MigDevice> {
        let all = self.mig.devices.iter();
        all.filter(move |part| part.gpu_instance == Some(gpu_instance))
    }

    /// The position of a new GPU instance, if it fits.
    fn place(&self, profile: Profile, start: Option<u32>) -> Option<u32> {
        let mut same = 0;
        let mut taken = Vec::new();
        for instance in &self.mig.gpu_instances {
            let other = self.profile(&instance.profile)?;
            same += u32::from(other.index == profile.index);
            taken.push(instance.start..instance.start + other.size);
        }
        let is_free = |at: &u32| {
            taken
                .iter()
                .all(|other| at + profile.size <= other.start || *at >= other.end)
        };
        let mut possible = profile.starts.iter().rev().copied();
        let found = possible.find(|at| start.is_none_or(|start| start == *at) && is_free(at));
        found.filter(|_| same < profile.most)
    }

    fn is_in_use(&self) -> bool {
        let path = self.in_use_while.as_ref();
        path.is_some_and(|path| path.exists()) || !self.processes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;

    fn gpu(id: &str) -> Gpu {
        let text = format!(
            "driver-version = \"1\"\ncuda-version = \"12.2\"\n[[gpu]]\npci-address = \"0000:18:00.0\"\npci-id = \"{id}\"\n"
        );
        Inventory::parse(&text)
            .expect("an inventory")
            .gpus
            .remove(0)
    }

    /// Creates a GPU instance with one compute instance of its size.
    fn create(gpu: &mut Gpu, name: &str, start: Option<u32>) -> Result<u32> {
        let profile = gpu.profile(name).expect("a profile");
        let id = gpu.create_gpu_instance(profile.id, start)?;
        gpu.create_compute_instance(id, profile.compute())?;
        Ok(id)
    }

    #[test]
    fn instances_share_slices_of_gpu() {
        let mut h100 = gpu("10de:2330");
        assert_eq!(create(&mut h100, "3g.40gb", None), Err(Code::NOT_SUPPORTED));
        assert_eq!(h100.set_mig_mode(true), Ok(Ok(())));
        for name in ["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb+me"] {
            create(&mut h100, name, None).expect(name);
        }
        let starts: Vec<u32> = h100.mig.gpu_instances.iter().map(|one| one.start).collect();
        assert_eq!(starts, [4, 2, 1, 0]);
        let full = Err(Code::INSUFFICIENT_RESOURCES);
        assert_eq!(create(&mut h100, "1g.10gb", None), full);
        assert_eq!(h100.destroy_gpu_instance(3), Err(Code::IN_USE));
        assert_eq!(h100.destroy_compute_instance(3, 0), Ok(()));
        assert_eq!(h100.destroy_gpu_instance(3), Ok(()));
        // The media engines have another user.
        assert_eq!(create(&mut h100, "1g.10gb+me", None), full);
        assert_eq!(create(&mut h100, "1g.10gb", Some(0)), full);
        assert_eq!(
            create(&mut h100, "1g.10gb", Some(7)),
            Err(Code::INVALID_ARGUMENT)
        );
        assert_eq!(create(&mut h100, "1g.10gb", Some(1)), Ok(3));
    }

    #[test]
    fn compute_instances_share_slices_of_gpu_instance() {
        let mut h100 = gpu("10de:2330");
        h100.set_mig_mode(true).expect("MIG").expect("no reset");
        h100.mig.nodes_of = Some(0);
        let id = h100.create_gpu_instance(9, None).expect("3g.40gb");
        assert_eq!(h100.create_compute_instance(id, 1), Ok(0));
        assert_eq!(
            h100.create_compute_instance(id, 1),
            Err(Code::INSUFFICIENT_RESOURCES)
        );
        assert_eq!(
            h100.create_compute_instance(id, 3),
            Err(Code::NOT_SUPPORTED)
        );
        assert_eq!(h100.create_compute_instance(id, 0), Ok(1));
        let names: Vec<&str> = h100.mig.devices.iter().map(|one| &*one.profile).collect();
        assert_eq!(names, ["2c.3g.40gb", "1c.3g.40gb"]);
        assert_eq!(h100.mig.devices[1].capabilities, [12, 14]);
    }

    #[test]
    fn ampere_changes_mode_at_reset() {
        let mut a100 = gpu("10de:20b0");
        assert_eq!(a100.set_mig_mode(true), Ok(Err(Code::RESET_REQUIRED)));
        assert!(!a100.mig.enabled);
        a100.reset().expect("it is not in use");
        assert!(a100.mig.enabled);
    }

    #[test]
    fn gpu_in_use_keeps_its_instances() {
        let mut h100 = gpu("10de:2330");
        h100.set_mig_mode(true).expect("MIG").expect("no reset");
        let id = create(&mut h100, "7g.80gb", None).expect("it fits");
        h100.in_use_while = Some("/".into());
        assert_eq!(h100.set_mig_mode(false), Ok(Err(Code::IN_USE)));
        assert_eq!(h100.reset(), Err(Code::IN_USE));
        assert_eq!(h100.destroy_compute_instance(id, 0), Err(Code::IN_USE));
        assert!(h100.mig.enabled && h100.mig.devices.len() == 1);
        h100.in_use_while = None;
        h100.reset().expect("it is not in use");
        assert!(!h100.mig.enabled && h100.mig.gpu_instances.is_empty());
    }
}

//! MIG profiles by name, for GPUs with seven slices such as A100 and with four slices such as A30.

/// A profile in NVML's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// `NVML_GPU_INSTANCE_PROFILE_…`.
    pub index: u32,
    /// The ID that `nvidia-smi` prints.
    pub id: u32,
    /// Compute slices of the GPU instance.
    pub slices: u32,
    /// Compute slices of the compute instance.
    pub compute_slices: u32,
    /// Memory slices.
    pub size: u32,
    /// The number of instances that fit on a GPU.
    pub most: u32,
    /// The first memory slices of the possible placements.
    pub starts: &'static [u32],
    /// Memory slices of the GPU.
    of: u32,
}

/// Profiles whose compute instance has all slices: index, ID, slices, memory slices, number and placements.
type Row = (u32, u32, u32, u32, u32, &'static [u32]);

/// The profiles with media engines: `NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1` and `…_2_SLICE_REV1`.
const MEDIA: [u32; 2] = [7, 8];

/// IDs as on A100 and H100.
const SEVEN_SLICES: [Row; 7] = [
    (0, 19, 1, 1, 7, &[0, 1, 2, 3, 4, 5, 6]),
    (1, 14, 2, 2, 3, &[0, 2, 4]),
    (2, 9, 3, 4, 2, &[0, 4]),
    (3, 5, 4, 4, 1, &[0]),
    (4, 0, 7, 8, 1, &[0]),
    (7, 20, 1, 1, 1, &[0, 1, 2, 3, 4, 5, 6]),
    (9, 15, 1, 2, 4, &[0, 2, 4, 6]),
];

/// IDs as on A30.
const FOUR_SLICES: [Row; 5] = [
    (0, 14, 1, 1, 4, &[0, 1, 2, 3]),
    (1, 5, 2, 2, 2, &[0, 2]),
    (3, 0, 4, 4, 1, &[0]),
    (7, 21, 1, 1, 1, &[0, 1, 2, 3]),
    (8, 6, 2, 2, 1, &[0, 2]),
];

/// Slices of each `NVML_COMPUTE_INSTANCE_PROFILE_…`, whose number is the index. It is also its ID.
const COMPUTE: [u32; 5] = [1, 2, 3, 4, 7];

/// The profiles of a GPU with this number of slices.
pub fn profiles(of_gpu: u32) -> impl Iterator<Item = Profile> {
    let (rows, of): (&[Row], u32) = match of_gpu {
        4 => (&FOUR_SLICES, 4),
        _ => (&SEVEN_SLICES, 8),
    };
    rows.iter()
        .map(move |&(index, id, slices, size, most, starts)| Profile {
            index,
            id,
            slices,
            compute_slices: slices,
            size,
            most,
            starts,
            of,
        })
}

/// `1g.10gb`, `1g.10gb+me`, or the compute instance `1c.3g.40gb`, on a GPU with this memory and number of slices.
pub fn profile(name: &str, memory_mib: u64, of_gpu: u32) -> Option<Profile> {
    let (size, media) = match name.strip_suffix("+me") {
        Some(size) => (size, true),
        None => (name, false),
    };
    let (compute, size) = match size.split_once("c.") {
        Some((compute, size)) => (Some(compute.parse().ok()?), size),
        None => (None, size),
    };
    let (slices, memory) = size.strip_suffix("gb")?.split_once("g.")?;
    let slices: u32 = slices.parse().ok()?;
    let gb: u64 = memory.parse().ok()?;
    let found = profiles(of_gpu).find(|profile| {
        profile.slices == slices
            && MEDIA.contains(&profile.index) == media
            && profile.memory_gb(memory_mib) == gb
    })?;
    let compute_slices = compute.unwrap_or(slices);
    let fits = COMPUTE.contains(&compute_slices) && compute_slices <= slices;
    fits.then_some(found.with_compute(compute_slices))
}

impl Profile {
    /// Memory of an instance on a GPU with this much memory.
    pub fn memory_mib(&self, of_gpu: u64) -> u64 {
        of_gpu * u64::from(self.size) / u64::from(self.of)
    }

    /// The memory in the name of the profile, half up.
    fn memory_gb(&self, of_gpu_mib: u64) -> u64 {
        let of = u64::from(self.of);
        (of_gpu_mib.div_ceil(1024) * u64::from(self.size) * 2 + of) / (of * 2)
    }

    /// The profile with a compute instance of this size.
    pub fn with_compute(self, slices: u32) -> Self {
        Self {
            compute_slices: slices,
            ..self
        }
    }

    /// The name on a GPU with this much memory.
    pub fn name(&self, of_gpu_mib: u64) -> String {
        let compute = match self.compute_slices {
            compute if compute == self.slices => String::new(),
            compute => format!("{compute}c."),
        };
        let media = if MEDIA.contains(&self.index) {
            "+me"
        } else {
            ""
        };
        let (slices, memory) = (self.slices, self.memory_gb(of_gpu_mib));
        format!("{compute}{slices}g.{memory}gb{media}")
    }

    /// `NVML_COMPUTE_INSTANCE_PROFILE_…` of the compute instance.
    pub fn compute(&self) -> u32 {
        let at = COMPUTE.iter().position(|one| *one == self.compute_slices);
        at.unwrap_or_default() as u32
    }

    /// The slices of a compute instance with this `NVML_COMPUTE_INSTANCE_PROFILE_…`, if it fits into the GPU instance.
    pub fn compute_slices_of(&self, index: u32) -> Option<u32> {
        let slices = *COMPUTE.get(index as usize)?;
        (slices <= self.slices).then_some(slices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvidia_profile_names_are_parsed() {
        for (memory_gib, slices, name, id) in [
            (80, 7, "1g.10gb", Some(19)),
            (80, 7, "1g.10gb+me", Some(20)),
            (80, 7, "1g.20gb", Some(15)),
            (80, 7, "3g.40gb", Some(9)),
            (80, 7, "2c.3g.40gb", Some(9)),
            (80, 7, "7g.80gb", Some(0)),
            (141, 7, "1g.18gb", Some(19)),
            (141, 7, "3g.71gb", Some(9)),
            (180, 7, "1g.23gb", Some(19)),
            (24, 4, "1g.6gb", Some(14)),
            (24, 4, "2g.12gb+me", Some(6)),
            (24, 4, "4g.24gb", Some(0)),
            (80, 7, "5g.60gb", None),
            (80, 7, "1g.18gb", None),
            (80, 7, "4c.3g.40gb", None),
            (80, 7, "all", None),
        ] {
            let found = profile(name, memory_gib << 10, slices);
            assert_eq!(found.map(|profile| profile.id), id, "{name}");
            if let Some(found) = found {
                assert_eq!(found.name(memory_gib << 10), name);
            }
        }
        let part = profile("2c.3g.40gb", 80 << 10, 7).expect("a profile");
        assert_eq!((part.compute(), part.compute_slices_of(3)), (1, None));
    }
}

//! MIG profiles by name, for GPUs with seven slices.

/// A profile in NVML's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// `NVML_GPU_INSTANCE_PROFILE_…`.
    pub index: u32,
    /// The ID that `nvidia-smi` prints.
    pub id: u32,
    /// Compute slices.
    pub slices: u32,
    /// `NVML_COMPUTE_INSTANCE_PROFILE_…`.
    pub compute: u32,
    /// Eighths of the memory.
    pub eighths: u64,
}

/// Index, id, slices, compute profile and eighths of the memory; ids as on A100 and H100.
const PROFILES: [(u32, u32, u32, u32, u64); 7] = [
    (0, 19, 1, 0, 1),
    (1, 14, 2, 1, 2),
    (2, 9, 3, 2, 4),
    (3, 5, 4, 3, 4),
    (4, 0, 7, 4, 8),
    (7, 20, 1, 0, 1),
    (9, 15, 1, 0, 2),
];

/// The profiles.
pub fn profiles() -> impl Iterator<Item = Profile> {
    PROFILES
        .into_iter()
        .map(|(index, id, slices, compute, eighths)| Profile {
            index,
            id,
            slices,
            compute,
            eighths,
        })
}

/// `1g.10gb` or `1g.10gb+me` on a GPU of this much memory.
pub fn profile(name: &str, memory_mib: u64) -> Option<Profile> {
    let (size, media) = match name.strip_suffix("+me") {
        Some(size) => (size, true),
        None => (name, false),
    };
    let (slices, memory) = size.strip_suffix("gb")?.split_once("g.")?;
    let slices: u32 = slices.parse().ok()?;
    let gib: u64 = memory.parse().ok()?;
    // `1g` exists with one and with two eighths of the memory.
    let double = slices == 1 && gib * 16 > (memory_mib >> 10) * 3;
    profiles().find(|profile| {
        profile.slices == slices
            && (profile.index == 7) == media
            && (profile.index == 9) == (double && !media)
    })
}

impl Profile {
    /// Memory of an instance on a GPU with this much memory.
    pub fn memory_mib(&self, of_gpu: u64) -> u64 {
        of_gpu * self.eighths / 8
    }

    /// The number of instances that fit on a GPU.
    pub fn most(&self) -> u32 {
        match self.index {
            0 => 7,
            1 => 3,
            2 => 2,
            9 => 4,
            _ => 1,
        }
    }

    /// The first memory slices of the possible placements, as on A100.
    pub fn starts(&self) -> &'static [u32] {
        match self.index {
            0 | 7 => &[0, 1, 2, 3, 4, 5, 6],
            1 => &[0, 2, 4],
            2 => &[0, 4],
            9 => &[0, 2, 4, 6],
            _ => &[0],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvidia_profile_names_are_parsed() {
        let id = |name| profile(name, 81920).map(|profile| profile.id);
        assert_eq!(id("1g.10gb"), Some(19));
        assert_eq!(id("1g.10gb+me"), Some(20));
        assert_eq!(id("1g.20gb"), Some(15));
        assert_eq!(id("3g.40gb"), Some(9));
        assert_eq!(id("7g.80gb"), Some(0));
        assert_eq!(id("5g.60gb"), None);
        assert_eq!(id("all"), None);
    }
}

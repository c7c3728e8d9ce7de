//! MIG layouts as text: a profile, the layout of one GPU, and the values of the settings `mig.layout` and `mig.models`.

use std::{cmp::Reverse, fmt, str::FromStr};

use crate::model::{
    pci::{PciAddress, PciId},
    text::as_text,
};

/// The suffixes of profile names, longest first. Source: NVIDIA/mig-parted, `pkg/types/mig_profile.go`.
const MARKS: [&str; 5] = ["+me.all", "+gfx", "+me", "-me", ""];

/// More instances than any GPU has, so that a count cannot allocate much memory.
const MOST: usize = 64;

/// The reason that a text is not a layout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {what}")]
pub struct LayoutError {
    text: String,
    what: &'static str,
}

impl LayoutError {
    fn new(text: &str, what: &'static str) -> Self {
        Self {
            text: text.to_owned(),
            what,
        }
    }
}

/// A profile of a GPU instance such as `1g.10gb+me`, or of a compute instance that is smaller than its GPU instance, such as
/// `1c.3g.40gb`. Larger profiles are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Profile {
    /// GPU instance slices.
    pub slices: u32,
    /// Memory in GB, as in the name.
    pub memory_gb: u32,
    /// Compute slices. `None` for the whole GPU instance.
    pub compute: Option<u32>,
    /// The suffix, such as `+me`.
    pub mark: &'static str,
}

const PROFILE: &str = "a MIG profile such as `1g.10gb` or `1g.10gb+me`";

/// Parses digits without sign and leading zeros.
fn number(text: &str) -> Option<u32> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|_| is_plain)
}

impl FromStr for Profile {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (compute, rest) = match text.split_once("c.") {
                Some((compute, rest)) => (Some(number(compute)?), rest),
                None => (None, text),
            };
            let (slices, rest) = rest.split_once("g.")?;
            let (memory, mark) = rest.split_once("gb")?;
            let slices = number(slices)?;
            if compute.is_some_and(|compute| compute > slices) {
                return None;
            }
            Some(Self {
                slices,
                memory_gb: number(memory)?,
                // NVIDIA's tools omit it then: `3c.3g.40gb` is `3g.40gb`.
                compute: compute.filter(|compute| *compute != slices),
                mark: MARKS.into_iter().find(|one| *one == mark)?,
            })
        };
        parse().ok_or_else(|| LayoutError::new(text, PROFILE))
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(compute) = self.compute {
            write!(to, "{compute}c.")?;
        }
        write!(to, "{}g.{}gb{}", self.slices, self.memory_gb, self.mark)
    }
}

impl Profile {
    /// The profile of the GPU instance.
    pub const fn of_gpu_instance(self) -> Self {
        Self {
            compute: None,
            ..self
        }
    }

    /// The sizes of compute instances that are smaller than the GPU instance, in compute slices.
    ///
    /// Source: NVIDIA/mig-parted v0.14.4, `pkg/mig/config/known_configs.go`, for A100 40 GB. Unverified for other models.
    pub const fn compute_sizes(self) -> &'static [u32] {
        match self.slices {
            0 | 1 => &[],
            2 => &[1],
            3 | 4 => &[1, 2],
            _ => &[1, 2, 3, 4],
        }
    }
}

as_text!(
    Profile,
    PROFILE,
    r"^([1-9][0-9]*c\.)?[1-9][0-9]*g\.[1-9][0-9]*gb(\+me|\+me\.all|\+gfx|-me)?$"
);

/// A GPU instance and its compute instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInstance {
    pub profile: Profile,
    /// The profiles of compute instances that are smaller than the GPU instance, largest first. Empty if one compute instance has
    /// all slices.
    pub compute: Vec<Profile>,
}

impl GpuInstance {
    /// Whether another compute instance fits.
    fn has_room(&self, slices: u32) -> bool {
        let used: u32 = (self.compute.iter().filter_map(|one| one.compute)).sum();
        !self.compute.is_empty() && used + slices <= self.profile.slices
    }
}

/// The MIG mode and the instances of one GPU. As text: `disabled`, `enabled` (without instances), or profiles such as
/// `3g.40gb,1g.10gb*2`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    pub enabled: bool,
    /// The instances, largest first.
    profiles: Vec<Profile>,
}

const LAYOUT: &str = "`disabled`, `enabled`, or MIG profiles such as `3g.40gb,1g.10gb*2`";

impl Layout {
    /// The layout of a GPU in MIG mode with these instances, in any order.
    pub fn with(mut profiles: Vec<Profile>) -> Self {
        profiles.sort_unstable_by(|one, other| other.cmp(one));
        Self {
            enabled: true,
            profiles,
        }
    }

    /// The instances, largest first.
    pub fn profiles(&self) -> &[Profile] {
        &self.profiles
    }

    /// The GPU instances, largest first. Compute instances that are smaller than their GPU instance share as few GPU instances as
    /// possible, as with NVIDIA's MIG manager (mig-parted, `pkg/mig/config/config.go`).
    pub fn gpu_instances(&self) -> Vec<GpuInstance> {
        let mut found: Vec<GpuInstance> = Vec::new();
        for profile in &self.profiles {
            let own = profile.of_gpu_instance();
            let shared = profile.compute.and_then(|slices| {
                let mut others = found.iter_mut();
                others.find(|other| other.profile == own && other.has_room(slices))
            });
            match shared {
                Some(other) => other.compute.push(*profile),
                None => found.push(GpuInstance {
                    profile: own,
                    compute: profile.compute.iter().map(|_| *profile).collect(),
                }),
            }
        }
        found.sort_by_key(|one| Reverse(one.profile));
        found
    }
}

impl FromStr for Layout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "disabled" => return Ok(Self::default()),
            "enabled" => return Ok(Self::with(Vec::new())),
            _ => {}
        }
        let mut profiles = Vec::new();
        for part in text.split(',') {
            let (name, count) = match part.split_once('*') {
                Some((name, count)) => (name, number(count)),
                None => (part, Some(1)),
            };
            let profile: Profile = name.parse()?;
            let count = count.and_then(|count| usize::try_from(count).ok());
            let count = count.filter(|count| profiles.len() + count <= MOST);
            let count = count.ok_or_else(|| LayoutError::new(text, LAYOUT))?;
            profiles.extend(std::iter::repeat_n(profile, count));
        }
        Ok(Self::with(profiles))
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.enabled, &self.profiles[..]) {
            (false, _) => to.write_str("disabled"),
            (true, []) => to.write_str("enabled"),
            (true, profiles) => to.write_str(&counted(profiles)),
        }
    }
}

/// Formats sorted profiles: `3g.40gb,1g.10gb*2`.
pub(super) fn counted(profiles: &[Profile]) -> String {
    let groups = profiles.chunk_by(|one, other| one == other);
    let texts: Vec<String> = groups
        .map(|group| match group {
            [one] => one.to_string(),
            [one, ..] => format!("{one}*{}", group.len()),
            [] => String::new(),
        })
        .collect();
    texts.join(",")
}

/// The layout of a GPU of this machine. As text: `0000:18:00.0=1g.10gb*7`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuLayout {
    pub gpu: PciAddress,
    pub layout: Layout,
}

const GPU_LAYOUT: &str = "the layout of a GPU such as `0000:18:00.0=1g.10gb*7`";

impl FromStr for GpuLayout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || LayoutError::new(text, GPU_LAYOUT);
        let (gpu, layout) = text.split_once('=').ok_or_else(wrong)?;
        Ok(Self {
            gpu: gpu.parse().map_err(|_| wrong())?,
            layout: layout.parse()?,
        })
    }
}

impl fmt::Display for GpuLayout {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}={}", self.gpu, self.layout)
    }
}

as_text!(GpuLayout, GPU_LAYOUT, "^[0-9a-f:.]+=.+$");

/// The layout of all GPUs of a model. As text: `10de:2330=3g.40gb,1g.10gb*2`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelLayout {
    /// The PCI ID.
    pub model: PciId,
    pub layout: Layout,
}

const MODEL_LAYOUT: &str = "a PCI ID and a layout such as `10de:2330=3g.40gb,1g.10gb*2`, `10de:2330=enabled` or \
                            `10de:2330=disabled`";

impl FromStr for ModelLayout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || LayoutError::new(text, MODEL_LAYOUT);
        let (model, layout) = text.split_once('=').ok_or_else(wrong)?;
        Ok(Self {
            model: model.parse().map_err(|_| wrong())?,
            layout: layout.parse()?,
        })
    }
}

impl fmt::Display for ModelLayout {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}={}", self.model, self.layout)
    }
}

as_text!(
    ModelLayout,
    MODEL_LAYOUT,
    "^[0-9a-fA-F]{4}:[0-9a-fA-F]{4}=[a-z0-9.,*+-]+$"
);

/// A layout that is computed for each GPU, with the names of NVIDIA's MIG manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedLayout {
    AllDisabled,
    AllEnabled,
    AllBalanced,
    /// As many instances of the profile as fit.
    All(Profile),
}

const NAMED: &str = "`all-disabled`, `all-enabled`, `all-balanced`, or `all-` and a MIG profile such as `all-1g.10gb` \
                     or `all-1g.10gb.me`";

impl FromStr for NamedLayout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "all-disabled" => Self::AllDisabled,
            "all-enabled" => Self::AllEnabled,
            "all-balanced" => Self::AllBalanced,
            _ => {
                let profile = text.strip_prefix("all-").map(|name| {
                    // Names of layouts contain a dot instead of the plus sign.
                    name.replacen("gb.", "gb+", 1).parse::<Profile>()
                });
                match profile {
                    Some(Ok(profile)) if profile.compute.is_none() => Self::All(profile),
                    _ => return Err(LayoutError::new(text, NAMED)),
                }
            }
        })
    }
}

impl fmt::Display for NamedLayout {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllDisabled => to.write_str("all-disabled"),
            Self::AllEnabled => to.write_str("all-enabled"),
            Self::AllBalanced => to.write_str("all-balanced"),
            Self::All(profile) => write!(to, "all-{}", profile.to_string().replace('+', ".")),
        }
    }
}

as_text!(NamedLayout, NAMED, "^all-[a-z0-9.+-]+$");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text::reads_any_text;

    #[test]
    fn profiles_are_parsed_and_formatted() {
        for name in [
            "1g.5gb",
            "1g.10gb+me",
            "1g.24gb+me.all",
            "1g.24gb-me",
            "2g.48gb+gfx",
            "1c.3g.40gb",
            "7g.141gb",
        ] {
            assert_eq!(name.parse::<Profile>().unwrap().to_string(), name);
        }
        for wrong in [
            "",
            "1g",
            "1g.10gb+me-me",
            "1g.10gb-gfx",
            "0g.10gb",
            "+1g.10gb",
            "1g.010gb",
            "1g.10gb ",
            "c.1g.10gb",
            "4c.3g.40gb",
        ] {
            assert!(wrong.parse::<Profile>().is_err(), "{wrong}");
        }
        let whole: Profile = "3c.3g.40gb".parse().unwrap();
        assert_eq!(whole.to_string(), "3g.40gb");
    }

    #[test]
    fn compute_instances_share_gpu_instances() {
        for (layout, instances) in rows! {
            "3g.40gb,1g.10gb*2", "3g.40gb[] 1g.10gb[] 1g.10gb[]";
            "1c.3g.40gb*3,2g.20gb", "3g.40gb[1c.3g.40gb*3] 2g.20gb[]";
            // Two large ones do not fit into one GPU instance.
            "2c.3g.40gb*2,1c.3g.40gb*2",
                "3g.40gb[2c.3g.40gb,1c.3g.40gb] 3g.40gb[2c.3g.40gb,1c.3g.40gb]";
            // A whole GPU instance is not shared.
            "3g.40gb,1c.3g.40gb", "3g.40gb[1c.3g.40gb] 3g.40gb[]";
            "3c.7g.80gb,2c.7g.80gb*2", "7g.80gb[3c.7g.80gb,2c.7g.80gb*2]";
        } {
            let layout: Layout = layout.parse().unwrap();
            let texts: Vec<String> = (layout.gpu_instances().iter())
                .map(|one| format!("{}[{}]", one.profile, counted(&one.compute)))
                .collect();
            assert_eq!(texts.join(" "), instances, "{layout}");
        }
    }

    #[test]
    fn layouts_have_one_text() {
        for (text, same) in [
            ("disabled", "disabled"),
            ("enabled", "enabled"),
            (
                "1g.10gb,3g.40gb,1g.10gb,2g.20gb",
                "3g.40gb,2g.20gb,1g.10gb*2",
            ),
            ("1g.10gb*6,1g.10gb+me", "1g.10gb+me,1g.10gb*6"),
        ] {
            assert_eq!(text.parse::<Layout>().unwrap().to_string(), same);
        }
        for wrong in [
            "",
            "1g.10gb*0",
            "1g.10gb*x",
            "1g.10gb*65",
            "1g.10gb,",
            "off",
        ] {
            assert!(wrong.parse::<Layout>().is_err(), "{wrong}");
        }
        let gpu = "0000:18:00.0=1g.10gb*7";
        assert_eq!(gpu.parse::<GpuLayout>().unwrap().to_string(), gpu);
        let model = "10de:2330=disabled";
        assert_eq!(model.parse::<ModelLayout>().unwrap().to_string(), model);
    }

    #[test]
    fn named_layouts_are_those_of_the_mig_manager() {
        for name in [
            "all-disabled",
            "all-enabled",
            "all-balanced",
            "all-1g.10gb",
            "all-1g.10gb.me",
            "all-1g.24gb.me.all",
            "all-1g.24gb-me",
        ] {
            assert_eq!(name.parse::<NamedLayout>().unwrap().to_string(), name);
        }
        for wrong in ["balanced", "all-", "all-1c.3g.40gb", "all-1g"] {
            assert!(wrong.parse::<NamedLayout>().is_err(), "{wrong}");
        }
    }

    reads_any_text!(
        "([0-9cgb.,*+=:-]|gb|all-|\\+me)*",
        |text| text.parse::<Profile>(); text.parse::<Layout>(); text.parse::<GpuLayout>();
            text.parse::<ModelLayout>(); text.parse::<NamedLayout>()
    );
}

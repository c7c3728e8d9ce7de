//! Which layouts fit on a GPU: its profiles and their placements, from NVML or from the table `mig_profiles.toml`.
//!
//! A GPU instance occupies a range of memory slices, and each profile has fixed positions. Instances must not overlap, so the
//! order in which they are created matters if the driver chooses the positions: on A100, a `3g` instance after two `1g`
//! instances may fail although all three fit. NVIDIA's tools try all orders. This module computes positions that fit, and the
//! instances are created at these positions.

use std::sync::LazyLock;

use serde::Deserialize;

use super::layout::{Profile, counted};
use crate::{
    host::{MigPlacement, MigSupport},
    model::{pci::PciId, text::built_in},
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    model: Vec<Model>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    #[expect(dead_code, reason = "describes the entry")]
    name: String,
    devices: Vec<PciId>,
    slices: u32,
    profiles: Vec<Profile>,
}

static MODELS: LazyLock<Vec<Model>> = LazyLock::new(|| {
    let table: Table =
        built_in("mig_profiles").expect("the built-in table is valid, as a test checks");
    table.model
});

/// NVML reports a wrong number of instances for this GPU, the A30. Source: NVIDIA/mig-parted, `pkg/mig/config`.
const WRONG_COUNTS: PciId = PciId {
    vendor: 0x10de,
    device: 0x20b7,
};

/// A profile of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    profile: Profile,
    /// The maximum number of instances.
    count: usize,
    placements: Vec<MigPlacement>,
}

/// The profiles of a GPU, with their placements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry(Vec<Place>);

/// Instances with the first memory slice of each.
pub type Placed = Vec<(Profile, u32)>;

impl Geometry {
    /// Returns the geometry of a GPU from NVML. Without complete data, returns the entry of its model in the table. `None` if
    /// the table does not contain the model.
    pub fn of(id: Option<PciId>, support: Option<&MigSupport>) -> Option<Self> {
        let table = id.and_then(Self::of_model);
        let Some(mut reported) = support.and_then(Self::reported) else {
            return table;
        };
        if let (Some(WRONG_COUNTS), Some(table)) = (id, table) {
            for place in &mut reported.0 {
                if let Some(known) = table.place_of(place.profile) {
                    place.count = known.count;
                }
            }
        }
        Some(reported)
    }

    /// Returns `None` if the driver does not report the profiles, or the placements of one of them.
    fn reported(support: &MigSupport) -> Option<Self> {
        let place = |profile: &crate::host::MigProfile| {
            (!profile.placements.is_empty()).then_some(())?;
            Some(Place {
                profile: profile.name.parse().ok()?,
                count: usize::try_from(profile.count).ok()?,
                placements: profile.placements.clone(),
            })
        };
        let places: Option<Vec<Place>> = support.profiles.iter().map(place).collect();
        places.filter(|places| !places.is_empty()).map(Self)
    }

    fn of_model(id: PciId) -> Option<Self> {
        let model = MODELS.iter().find(|model| model.devices.contains(&id))?;
        let two = model
            .profiles
            .iter()
            .find(|profile| profile.slices == 2)
            .map(|profile| profile.memory_gb);
        let place = |profile: &Profile| {
            // A `1g` profile with the memory of a `2g` profile occupies two memory slices.
            let is_double = profile.slices == 1 && Some(profile.memory_gb) == two;
            let placements = placements(model.slices, profile.slices, is_double);
            Place {
                profile: *profile,
                count: match profile.mark.starts_with("+me") {
                    true => 1,
                    false => placements.len(),
                },
                placements,
            }
        };
        Some(Self(model.profiles.iter().map(place).collect()))
    }

    fn place_of(&self, profile: Profile) -> Option<&Place> {
        self.0.iter().find(|place| place.profile == profile)
    }

    /// Returns positions for instances with these profiles.
    ///
    /// # Errors
    /// The reason that they do not fit.
    pub fn place(&self, profiles: &[Profile]) -> Result<Placed, String> {
        let mut places = Vec::new();
        for group in profiles.chunk_by(|one, other| one == other) {
            let (Some(profile), count) = (group.first(), group.len()) else {
                continue;
            };
            let place = self.place_of(*profile);
            let place = place.ok_or_else(|| format!("the GPU has no profile `{profile}`"))?;
            if count > place.count {
                return Err(format!("at most {} `{profile}` fit", place.count));
            }
            places.extend(std::iter::repeat_n(place, count));
        }
        let mut placed = Vec::new();
        if search(&places, 0, &mut placed) {
            return Ok(placed);
        }
        Err(format!("`{}` do not fit together", counted(profiles)))
    }

    /// Returns the largest number of instances with this profile. 0 if the GPU does not have the profile.
    pub fn most(&self, profile: Profile) -> usize {
        let limit = self.place_of(profile).map_or(0, |place| place.count);
        (1..=limit)
            .rev()
            .find(|count| self.place(&vec![profile; *count]).is_ok())
            .unwrap_or(0)
    }

    /// Returns the profiles of the layout `all-balanced`: 2 × 1g, 1 × 2g and 1 × 3g on GPUs with 7 slices, and 2 × 1g and
    /// 1 × 2g on GPUs with 4 slices. `None` if the GPU lacks one of them. Source: NVIDIA/mig-parted, config-default.yaml.
    pub fn balanced(&self) -> Option<Vec<Profile>> {
        let of = |slices: u32| {
            let plain = (self.0.iter().map(|place| place.profile))
                .filter(|profile| profile.slices == slices && profile.mark.is_empty());
            plain.min()
        };
        let has_seven = self.0.iter().any(|place| place.profile.slices == 7);
        let mut profiles = match has_seven {
            true => vec![of(3)?],
            false => Vec::new(),
        };
        profiles.extend([of(2)?, of(1)?, of(1)?]);
        self.place(&profiles).ok().map(|_| profiles)
    }

    /// Lists what fits: the largest number of each profile, and the balanced layout, with the positions:
    /// `` `3g.40gb*2` (3g.40gb:0,4) ``.
    pub fn fitting(&self) -> String {
        let mut profiles: Vec<Profile> = self.0.iter().map(|place| place.profile).collect();
        profiles.sort_unstable();
        let most = profiles
            .into_iter()
            .map(|profile| vec![profile; self.most(profile)]);
        let texts: Vec<String> = (most.chain(self.balanced()))
            .filter(|layout| !layout.is_empty())
            .filter_map(|layout| {
                let placed = self.place(&layout).ok()?;
                Some(format!("`{}` ({})", counted(&layout), positions(&placed)))
            })
            .collect();
        format!(
            "{}; the numbers after a colon are the first memory slices",
            texts.join(", ")
        )
    }
}

/// Formats positions: `3g.40gb:4 1g.10gb:0,1`.
fn positions(placed: &[(Profile, u32)]) -> String {
    let groups = placed.chunk_by(|(one, _), (other, _)| one == other);
    let texts: Vec<String> = groups
        .filter_map(|group| {
            let (profile, _) = group.first()?;
            let starts: Vec<String> = group.iter().map(|(_, start)| start.to_string()).collect();
            Some(format!("{profile}:{}", starts.join(",")))
        })
        .collect();
    texts.join(" ")
}

/// Returns the placements of a profile on a GPU with this number of slices. Source: `nvidia-smi mig -lgipp` on A100 and A30.
fn placements(of_gpu: u32, slices: u32, is_double: bool) -> Vec<MigPlacement> {
    let (starts, size): (&[u32], u32) = match (of_gpu, slices) {
        (7, 1) if is_double => (&[0, 2, 4, 6], 2),
        (7, 1) => (&[0, 1, 2, 3, 4, 5, 6], 1),
        (7, 2) => (&[0, 2, 4], 2),
        (7, 3) => (&[0, 4], 4),
        (7, 4) => (&[0], 4),
        (7, 7) => (&[0], 8),
        (4, 1) => (&[0, 1, 2, 3], 1),
        (4, 2) => (&[0, 2], 2),
        (4, 4) => (&[0], 4),
        _ => (&[], 0),
    };
    let placement = |start: &u32| MigPlacement {
        start: *start,
        size,
    };
    starts.iter().map(placement).collect()
}

/// Places the instances from `at` on, without overlaps. Equal profiles get ascending positions, so that no combination is tried
/// twice.
fn search(places: &[&Place], taken: u64, placed: &mut Placed) -> bool {
    let Some((place, rest)) = places.split_first() else {
        return true;
    };
    let least = match placed.last() {
        Some((profile, start)) if *profile == place.profile => start + 1,
        _ => 0,
    };
    for placement in &place.placements {
        let slices = slices(*placement);
        if placement.start < least || slices & taken != 0 {
            continue;
        }
        placed.push((place.profile, placement.start));
        if search(rest, taken | slices, placed) {
            return true;
        }
        placed.pop();
    }
    false
}

/// Returns a bit for each memory slice.
fn slices(placement: MigPlacement) -> u64 {
    let end = placement.start.saturating_add(placement.size);
    (placement.start..end)
        .filter_map(|slice| 1_u64.checked_shl(slice))
        .fold(0, |all, bit| all | bit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{host::MigProfile, mig::layout::Layout};

    fn of(id: &str) -> Geometry {
        Geometry::of(id.parse().ok(), None).expect("a model in the table")
    }

    fn profiles(text: &str) -> Vec<Profile> {
        text.parse::<Layout>().unwrap().profiles().to_vec()
    }

    #[test]
    fn table_is_valid() {
        assert!(MODELS.len() > 10);
        for model in MODELS.iter() {
            for id in &model.devices {
                let geometry = Geometry::of(Some(*id), None).unwrap();
                for place in &geometry.0 {
                    assert!(!place.placements.is_empty(), "{id}: {}", place.profile);
                }
                assert!(geometry.balanced().is_some(), "{id}");
            }
        }
    }

    #[test]
    fn numbers_of_instances_match_nvidias_default_file() {
        for (id, most) in rows! {
            "10de:20b0", "1g.5gb*7, 1g.5gb+me, 1g.10gb*4, 2g.10gb*3, 3g.20gb*2, 4g.20gb, 7g.40gb";
            "10de:20b2", "1g.10gb*7, 1g.10gb+me, 1g.20gb*4, 2g.20gb*3, 3g.40gb*2, 4g.40gb, 7g.80gb";
            "10de:20b7", "1g.6gb*4, 1g.6gb+me, 2g.12gb*2, 2g.12gb+me, 4g.24gb";
            "10de:2330", "1g.10gb*7, 1g.10gb+me, 1g.20gb*4, 2g.20gb*3, 3g.40gb*2, 4g.40gb, 7g.80gb";
            "10de:2335", "1g.18gb*7, 1g.18gb+me, 1g.35gb*4, 2g.35gb*3, 3g.71gb*2, 4g.71gb, 7g.141gb";
            "10de:2901", "1g.23gb*7, 1g.23gb+me, 1g.45gb*4, 2g.45gb*3, 3g.90gb*2, 4g.90gb, 7g.180gb";
            "10de:2bb5", "1g.24gb*4, 1g.24gb+gfx*4, 1g.24gb+me.all, 1g.24gb-me*4, 2g.48gb*2, 4g.96gb";
        } {
            let geometry = of(id);
            for text in most.split(", ") {
                let wanted = profiles(text);
                assert_eq!(geometry.most(wanted[0]), wanted.len(), "{id}: {text}");
            }
            assert_eq!(geometry.0.len(), most.split(", ").count(), "{id}");
        }
    }

    #[test]
    fn instances_are_placed_without_overlap() {
        for (id, text, places) in rows! {
            // The large instance must not take the slices that the others need.
            "10de:2330", "3g.40gb,2g.20gb,1g.10gb*2", "3g.40gb:4 2g.20gb:0 1g.10gb:2 1g.10gb:3";
            "10de:20b0", "3g.20gb*2", "3g.20gb:0 3g.20gb:4";
            "10de:20b0", "4g.20gb,3g.20gb", "4g.20gb:0 3g.20gb:4";
            "10de:20b0", "4g.20gb,2g.10gb,1g.5gb", "4g.20gb:0 2g.10gb:4 1g.5gb:6";
            "10de:20b0", "2g.10gb*3,1g.5gb", "2g.10gb:0 2g.10gb:2 2g.10gb:4 1g.5gb:6";
            "10de:20b0", "1g.5gb+me,1g.5gb*6",
                "1g.5gb+me:0 1g.5gb:1 1g.5gb:2 1g.5gb:3 1g.5gb:4 1g.5gb:5 1g.5gb:6";
            "10de:20b7", "2g.12gb,1g.6gb*2", "2g.12gb:0 1g.6gb:2 1g.6gb:3";
            "10de:2901", "7g.180gb", "7g.180gb:0";
        } {
            let placed = of(id).place(&profiles(text)).unwrap();
            let texts: Vec<String> = (placed.iter())
                .map(|(profile, start)| format!("{profile}:{start}"))
                .collect();
            assert_eq!(texts.join(" "), places, "{id}: {text}");
        }
    }

    #[test]
    fn layout_that_does_not_fit_is_rejected() {
        for (id, text, why) in rows! {
            "10de:2330", "1g.5gb", "the GPU has no profile `1g.5gb`";
            "10de:2330", "1g.10gb*8", "at most 7 `1g.10gb` fit";
            "10de:2330", "1g.10gb+me*2", "at most 1 `1g.10gb+me` fit";
            "10de:2330", "3g.40gb*2,1g.10gb", "`3g.40gb*2,1g.10gb` do not fit together";
            "10de:20b7", "4g.24gb,1g.6gb", "`4g.24gb,1g.6gb` do not fit together";
        } {
            assert_eq!(of(id).place(&profiles(text)), Err(why.to_owned()));
        }
        assert_eq!(
            of("10de:20b7").fitting(),
            "`1g.6gb*4` (1g.6gb:0,1,2,3), `1g.6gb+me` (1g.6gb+me:0), `2g.12gb*2` (2g.12gb:0,2), \
             `2g.12gb+me` (2g.12gb+me:0), `4g.24gb` (4g.24gb:0), `2g.12gb,1g.6gb*2` (2g.12gb:0 1g.6gb:2,3); \
             the numbers after a colon are the first memory slices"
        );
    }

    #[test]
    fn nvml_replaces_the_table_except_for_the_counts_of_a30() {
        let profile = |name: &str, count, placements: &[(u32, u32)]| MigProfile {
            name: name.to_owned(),
            count,
            placements: (placements.iter())
                .map(|(start, size)| MigPlacement {
                    start: *start,
                    size: *size,
                })
                .collect(),
        };
        let support = MigSupport {
            pending: false,
            profiles: vec![
                profile("1g.6gb", 2, &[(0, 1), (1, 1), (2, 1), (3, 1)]),
                profile("4g.24gb", 1, &[(0, 4)]),
            ],
        };
        let most = |id: &str, support: &MigSupport| {
            let geometry = Geometry::of(id.parse().ok(), Some(support)).unwrap();
            geometry.most("1g.6gb".parse().unwrap())
        };
        assert_eq!(most("10de:20b7", &support), 4);
        assert_eq!(most("10de:9999", &support), 2);
        // R535 reports no profiles while MIG is disabled, and a GPU may be unknown.
        let silent = MigSupport::default();
        assert_eq!(most("10de:20b7", &silent), 4);
        assert_eq!(Geometry::of("10de:9999".parse().ok(), Some(&silent)), None);
        // Without placements, the table decides.
        let mut partial = support;
        partial.profiles[1].placements.clear();
        assert_eq!(Geometry::of("10de:9999".parse().ok(), Some(&partial)), None);
    }
}

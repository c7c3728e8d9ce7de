//! Finds the GPUs that a name matches: a PCI ID, a product, an instance type, a product series, an architecture, or a number of
//! boards.

use crate::identity::{ChipName, GpuIdentity};
use crate::matrix::{Confidence, Fabric, Gpu, InstanceType, Matrix, Series};
use crate::pci::{NVIDIA, PciId};

/// A match of a name.
#[derive(Debug, Clone)]
pub struct NameMatch<'m> {
    /// A label such as `H100 PCIe (10de:2331)` or `p5.48xlarge (8 × H100)`.
    pub label: String,
    /// The GPU. `None` for an instance type without an NVIDIA GPU.
    pub gpu: Option<GpuIdentity>,
    /// The instance type, if specified.
    pub instance: Option<&'m InstanceType>,
    /// The number of GPUs, if specified, such as 8 for `8xH100` and `HGX H100`.
    pub gpus: Option<u32>,
    /// Whether the GPUs are connected by NVSwitches. `None` if the name does not specify it.
    pub switches: Option<bool>,
}

/// A name without a match.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not a GPU or an instance type in the matrix{}", perhaps(.nearest))]
pub struct UnknownName {
    /// The name.
    pub name: String,
    /// The nearest names.
    pub nearest: Vec<String>,
}

fn perhaps(names: &[String]) -> String {
    if names.is_empty() {
        String::new()
    } else {
        format!("; did you mean {}?", names.join(", "))
    }
}

impl Matrix {
    /// Returns all matches of a name. The first kind with a match counts: a PCI ID, an instance type, a baseboard (`HGX H100`), a
    /// product, an alias, the words of a product name, a series, an architecture, an instance type family, a number of boards
    /// (`8xH100`). Only whole words match, so `H200` does not match `GH200`. Of several entries, only those with the highest
    /// confidence count.
    ///
    /// # Errors
    /// If the name has no match.
    pub fn name_matches(&self, name: &str) -> Result<Vec<NameMatch<'_>>, UnknownName> {
        if let Ok(id) = name.trim().parse::<PciId>() {
            return Ok(vec![self.name_match(GpuIdentity {
                pci_id: id,
                subsystem_id: None,
                chip_name: None,
            })]);
        }
        let found = [
            self.instances(|row| is_type(&row.name, name)),
            self.baseboard(name),
            self.products(name),
            self.of_series(name),
            self.of_architecture(name),
            self.instances(|row| is_family(&row.name, name)),
            self.several(name),
        ];
        found
            .into_iter()
            .find(|found| !found.is_empty())
            .ok_or_else(|| UnknownName {
                name: name.to_owned(),
                nearest: self.near(name),
            })
    }

    fn name_match(&self, gpu: GpuIdentity) -> NameMatch<'_> {
        NameMatch {
            label: self.board(&gpu).label,
            gpu: Some(gpu),
            instance: None,
            gpus: None,
            switches: None,
        }
    }

    /// The boards of a name such as `HGX H100` or `DGX A100`: those that are built with NVSwitches.
    fn baseboard(&self, name: &str) -> Vec<NameMatch<'_>> {
        let mut words = words(name);
        let before = words.len();
        words.retain(|word| !matches!(word.as_str(), "hgx" | "dgx"));
        // `HGX H100 8-GPU`
        if words.last().is_some_and(|word| word == "8") {
            words.pop();
        }
        if words.is_empty() || words.len() == before {
            return Vec::new();
        }
        let found = self.products(&words.join(" ")).into_iter();
        found
            .filter(|name_match| self.has_switches(name_match))
            .map(|name_match| times(BASEBOARD, name_match, Some(true)))
            .collect()
    }

    /// The boards of a name with a number, such as `8xH100`. Eight or more boards of a kind that exists with NVSwitches are
    /// understood as a baseboard.
    fn several(&self, name: &str) -> Vec<NameMatch<'_>> {
        let Some((count, rest)) = counted(name) else {
            return Vec::new();
        };
        let found = match self.name_matches(rest) {
            Ok(found) if found.iter().all(|one| one.instance.is_none()) => found,
            _ => return Vec::new(),
        };
        let (with, without): (Vec<_>, Vec<_>) =
            (found.into_iter()).partition(|name_match| self.has_switches(name_match));
        match (count >= BASEBOARD, with.is_empty()) {
            (true, false) => (with.into_iter())
                .map(|name_match| times(count, name_match, Some(true)))
                .collect(),
            // Fewer than eight boards may be part of a baseboard with NVSwitches, or not.
            _ => (with
                .into_iter()
                .map(|name_match| times(count, name_match, None)))
            .chain((without.into_iter()).map(|name_match| times(count, name_match, Some(false))))
            .collect(),
        }
    }

    fn has_switches(&self, name_match: &NameMatch<'_>) -> bool {
        let board = name_match.gpu.as_ref().map(|gpu| self.board(gpu));
        board.is_some_and(|board| matches!(board.fabric(), Fabric::Fm | Fabric::FmNvlsm))
    }

    fn products(&self, name: &str) -> Vec<NameMatch<'_>> {
        let asked = words(name);
        let split = split_words(&asked);
        if asked.is_empty() {
            return Vec::new();
        }
        let names = |row: &Gpu| -> Vec<Vec<String>> {
            let all = std::iter::once(&row.name).chain(&row.aliases);
            all.map(|name| words(name)).collect()
        };
        let within = |asked: &[String], row: &Gpu| {
            names(row).iter().any(|words| {
                asked
                    .iter()
                    .all(|word| words.iter().any(|own| is_like(word, own)))
            })
        };
        let rules: [&dyn Fn(&Gpu) -> bool; 4] = [
            &|row| [&asked, &split].contains(&&words(&row.name)),
            &|row| names(row).contains(&asked),
            &|row| within(&asked, row),
            &|row| within(&split, row),
        ];
        let rows = rules.iter().map(|fits| {
            let rows: Vec<&Gpu> = self.gpus.iter().filter(|row| fits(row)).collect();
            let best: Option<Confidence> = rows.iter().map(|row| row.confidence).max();
            let sure = rows.into_iter().filter(|row| Some(row.confidence) == best);
            sure.collect::<Vec<&Gpu>>()
        });
        let rows = rows.into_iter().find(|rows| !rows.is_empty());
        let rows = rows.unwrap_or_default().into_iter();
        rows.map(|row| {
            self.name_match(GpuIdentity {
                pci_id: row.pci_id,
                subsystem_id: row.subsystem_id,
                chip_name: None,
            })
        })
        .collect()
    }

    /// A product without an entry, by its series. It has the name of the query, and no ID.
    fn of_series(&self, name: &str) -> Vec<NameMatch<'_>> {
        let words = split_words(&words(name));
        let row = self.series.iter().find(|row| is_of(row, &words));
        let name_match = row.map(|row| self.name_match(without_id(&row.chip, name.trim())));
        name_match.into_iter().collect()
    }

    /// A chip of each compute capability of an architecture.
    fn of_architecture(&self, name: &str) -> Vec<NameMatch<'_>> {
        let asked = name.trim().to_lowercase();
        let blocks = self
            .chip_ranges
            .iter()
            .filter(|row| row.architecture.as_str() == asked && row.compute_capability.is_some());
        let mut seen = Vec::new();
        let mut found = Vec::new();
        for block in blocks {
            let Some(chip) = block.chips.first() else {
                continue;
            };
            if seen.contains(&block.compute_capability) {
                continue;
            }
            seen.push(block.compute_capability);
            let title = self.architecture(&block.architecture);
            let title = title.map_or(asked.as_str(), |row| row.title.as_str());
            found.push(self.name_match(without_id(chip, &format!("{title} {chip}"))));
        }
        found
    }

    fn instances(&self, fits: impl Fn(&InstanceType) -> bool) -> Vec<NameMatch<'_>> {
        let rows = self.instance_types.iter().filter(|row| fits(row));
        rows.flat_map(|row| self.of_instance(row)).collect()
    }

    /// The GPUs of an instance type. Several IDs of its entry are alternatives.
    fn of_instance<'m>(&'m self, row: &'m InstanceType) -> Vec<NameMatch<'m>> {
        let many = match (row.gpu_fraction, row.gpus) {
            (Some(part), _) => format!("{part} of {}", row.gpu),
            (None, 1) => row.gpu.clone(),
            (None, count) => format!("{count} × {}", row.gpu),
        };
        let label = format!("{} ({many})", row.name);
        let name_match = |gpu| NameMatch {
            label: label.clone(),
            gpu,
            instance: Some(row),
            gpus: Some(row.gpus.max(1)),
            switches: Some(row.fabric != Fabric::None),
        };
        if row.gpu_ids.is_empty() {
            return vec![name_match(None)];
        }
        let gpus = row.gpu_ids.iter().map(|id| GpuIdentity {
            pci_id: *id,
            subsystem_id: None,
            chip_name: None,
        });
        gpus.map(|gpu| name_match(Some(gpu))).collect()
    }

    /// The GPU names within a longer name: `H100` in `BM.GPU.H100.8`.
    fn named_in(&self, name: &str) -> Vec<String> {
        let is_gpu = |word: &String| {
            word.bytes().any(|b| b.is_ascii_digit())
                && (self.gpus.iter()).any(|row| words(&row.name).first() == Some(word))
        };
        let found = words(name).into_iter().filter(is_gpu);
        found.map(|word| word.to_uppercase()).collect()
    }

    fn near(&self, name: &str) -> Vec<String> {
        let asked = words(name).join(" ");
        let inside = self.named_in(name);
        let gpus = self
            .gpus
            .iter()
            .filter(|row| inside.is_empty() && row.confidence == Confidence::Verified)
            .map(|row| (words(&row.name).join(" "), row.name.as_str()));
        let types = self
            .instance_types
            .iter()
            .map(|row| (words(&row.name).join(" "), row.name.as_str()));
        let mut scored: Vec<(f64, &str)> = gpus
            .chain(types)
            .map(|(own, name)| (strsim::jaro_winkler(&asked, &own), name))
            .filter(|(likeness, _)| *likeness > 0.75)
            .collect();
        scored.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        scored.dedup_by(|(_, a), (_, b)| a == b);
        let scored = scored.into_iter().map(|(_, name)| name.to_owned());
        inside.iter().cloned().chain(scored).take(3).collect()
    }
}

/// The number of GPUs on an HGX baseboard.
const BASEBOARD: u32 = 8;

/// A number of the same boards.
fn times(count: u32, name_match: NameMatch<'_>, switches: Option<bool>) -> NameMatch<'_> {
    NameMatch {
        label: format!("{count} × {}", name_match.label),
        gpus: Some(count),
        switches,
        ..name_match
    }
}

/// Splits `8xH100`, `8 x H100`, `8 × H100` and `H100 x8` into number and name.
fn counted(name: &str) -> Option<(u32, &str)> {
    let sign = |c: char| matches!(c, 'x' | 'X' | '×' | '*');
    let number = |text: &str| {
        text.trim()
            .parse()
            .ok()
            .filter(|count| (1..=16).contains(count))
    };
    let name = name.trim();
    let before = name
        .split_once(sign)
        .and_then(|(count, rest)| Some((number(count)?, rest)));
    let after = || {
        let (rest, count) = name.rsplit_once(sign)?;
        Some((number(count)?, rest))
    };
    let (count, rest) = before.or_else(after)?;
    Some((count, rest.trim())).filter(|(_, rest)| !rest.is_empty())
}

fn without_id(chip: &str, product: &str) -> GpuIdentity {
    GpuIdentity {
        pci_id: PciId {
            vendor: NVIDIA,
            device: 0,
        },
        subsystem_id: None,
        chip_name: Some(ChipName {
            chip: chip.to_owned(),
            product: Some(product.to_owned()),
        }),
    }
}

/// The words of a name, without brands.
fn words(name: &str) -> Vec<String> {
    name.to_lowercase()
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty() && !matches!(*word, "nvidia" | "tesla" | "geforce" | "gpu"))
        .map(str::to_owned)
        .collect()
}

/// Splits the words before their first digit: `rtx4090` becomes `rtx` and `4090`.
fn split_words(words: &[String]) -> Vec<String> {
    let mut parts = Vec::new();
    for word in words {
        match word.find(|c: char| c.is_ascii_digit()) {
            Some(at) if at > 0 => {
                let (letters, number) = word.split_at(at);
                parts.extend([letters.to_owned(), number.to_owned()]);
            }
            _ => parts.push(word.clone()),
        }
    }
    parts
}

/// Returns `true` if a word matches a word of a name: `sxm` matches `sxm5`, and `80g` matches `80gb`.
fn is_like(asked: &str, own: &str) -> bool {
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let form = asked.len() > 2
        && asked.bytes().all(|b| b.is_ascii_alphabetic())
        && own.strip_prefix(asked).is_some_and(digits);
    let size = |text: &str| {
        let number = text.strip_suffix("gb").or_else(|| text.strip_suffix('g'))?;
        digits(number).then(|| number.to_owned())
    };
    asked == own || form || size(asked).is_some_and(|asked| size(own) == Some(asked))
}

/// Returns `true` if the words are a product of a series.
fn is_of(row: &Series, words: &[String]) -> bool {
    let name: Vec<&str> = row.word.split(' ').collect();
    words.windows(name.len()).enumerate().any(|(at, window)| {
        // Some models end with letters: `K2100M`, `40HX`.
        let number = || {
            let word = words.get(at + name.len())?;
            let digits = word.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
            digits.parse::<u32>().ok()
        };
        window == name
            && match (row.first, row.last) {
                (Some(first), Some(last)) => {
                    number().is_some_and(|number| first <= number && number <= last)
                }
                _ => true,
            }
    })
}

/// Returns `true` if a text is an instance type. The Azure prefix `Standard_` is optional.
fn is_type(own: &str, asked: &str) -> bool {
    let asked = asked.trim();
    let short = own.strip_prefix("Standard_").unwrap_or(own);
    own.eq_ignore_ascii_case(asked) || short.eq_ignore_ascii_case(asked)
}

/// Returns `true` if a text is the family of an instance type, such as `p5` or `a2-highgpu`.
fn is_family(own: &str, asked: &str) -> bool {
    let (own, asked) = (own.to_lowercase(), asked.trim().to_lowercase());
    !asked.is_empty() && (own.strip_prefix(&asked)).is_some_and(|rest| rest.starts_with(['.', '-']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix() -> Matrix {
        Matrix::builtin().unwrap()
    }

    fn named(name: &str) -> Vec<String> {
        let matrix = matrix();
        let found = matrix.name_matches(name).unwrap_or_default();
        found
            .into_iter()
            .map(|name_match| name_match.label)
            .collect()
    }

    #[test]
    fn names_match_one_gpu() {
        for (name, id) in [
            ("H200 SXM", "10de:2335"),
            ("NVIDIA H200", "10de:2335"),
            ("T4", "10de:1eb8"),
            ("tesla-t4", "10de:1eb8"),
            ("L4", "10de:27b8"),
            ("A10", "10de:2236"),
            ("A10G", "10de:2237"),
            ("B200", "10de:2901"),
            ("DGX Spark", "10de:2e12"),
            ("GB200", "10de:2941"),
            ("A16", "10de:25b6"),
            ("RTX 4090", "10de:2684"),
            ("rtx4090", "10de:2684"),
            ("GeForce RTX 4090", "10de:2684"),
            ("h100 pcie", "10de:2331"),
            ("NVIDIA A100-SXM4-80GB", "10de:20b2"),
            ("10DE:2330", "10de:2330"),
        ] {
            let found = named(name);
            assert!(
                found.len() == 1 && found[0].ends_with(&format!("({id})")),
                "{name}: {found:?}"
            );
        }
    }

    #[test]
    fn names_match_several_gpus() {
        for (name, some, not) in [
            ("H100", "H100 SXM5 80GB (10de:2330)", "GH"),
            ("h100 sxm", "H100 SXM5 80GB (10de:2330)", "PCIe"),
            ("GH200", "GH200 144G HBM3e (10de:2348)", "(10de:2330)"),
            ("V100", "Tesla V100 PCIe 16GB (10de:1db4)", "P100"),
            ("RTX 6000", "RTX 6000 Ada (10de:26b1)", "4000"),
        ] {
            let found = named(name);
            assert!(found.len() > 1, "{name}: {found:?}");
            assert!(found.iter().any(|label| label == some), "{name}: {found:?}");
            assert!(
                found.iter().all(|label| !label.contains(not)),
                "{name}: {found:?}"
            );
        }
    }

    #[test]
    fn words_match_names_with_a_number() {
        for (asked, own, matches) in rows! {
            "sxm", "sxm5", true;
            "80g", "80gb", true;
            "sxm", "sxmd5", false;
            // Two letters are the name of a product, for example of the GT series.
            "gt", "gt1030", false;
        } {
            assert_eq!(is_like(asked, own), matches, "{asked}, {own}");
        }
    }

    #[test]
    fn instance_types_match_without_case_and_prefix() {
        for (name, label) in rows! {
            "p5.48xlarge", "p5.48xlarge (8 × H100 SXM5 80GB)";
            "P5.48XLARGE", "p5.48xlarge (8 × H100 SXM5 80GB)";
            "a2-highgpu-1g", "a2-highgpu-1g (A100 SXM4 40GB)";
            "standard_nd96isr_h100_v5", "Standard_ND96isr_H100_v5 (8 × H100 SXM5 80GB)";
            "p6e-gb300.36xlarge", "p6e-gb300.36xlarge (4 × GB300)";
            "ND96isr_H100_v5", "Standard_ND96isr_H100_v5 (8 × H100 SXM5 80GB)";
        } {
            assert_eq!(named(name), [label], "{name}");
        }
        assert!(named("g4dn").iter().all(|label| label.starts_with("g4dn.")));
        assert!(named("a3-highgpu").len() > 1);
    }

    #[test]
    fn products_without_an_entry_match_their_series() {
        let matrix = matrix();
        for (name, architecture, capability) in [
            ("RTX 4070 Ti SUPER", "ada", "8.9"),
            ("rtx4060", "ada", "8.9"),
            ("GeForce RTX 3060 Laptop GPU", "ampere", "8.6"),
            ("GTX 1080 Ti", "pascal", "6.1"),
            ("RTX 2080", "turing", "7.5"),
            ("GTX 1650", "turing", "7.5"),
            ("Quadro P2000", "pascal", "6.1"),
            ("TITAN V", "volta", "7.0"),
            ("RTX 5070", "blackwell", "12.0"),
            ("hopper", "hopper", "9.0"),
            ("NVIDIA RTX 2000 Ada Generation", "ada", "8.9"),
            ("RTX 4000 SFF Ada", "ada", "8.9"),
            ("CMP 40HX", "turing", "7.5"),
            ("P102-100", "pascal", "6.1"),
        ] {
            let found = matrix.name_matches(name).unwrap();
            assert_eq!(found.len(), 1, "{name}");
            let gpu = found[0].gpu.as_ref().unwrap();
            let board = matrix.board(gpu);
            let own = board.architecture.map(|row| row.name.as_str());
            assert_eq!(own, Some(architecture), "{name}");
            let own = board.capability.map(|version| version.to_string());
            assert_eq!(own.as_deref(), Some(capability), "{name}");
        }
        assert!(named("ampere").len() > 1);
        for (name, architecture) in [
            ("Quadro K2100M", "kepler"),
            ("K620", "maxwell"),
            ("Quadro M2000", "maxwell"),
            ("GTX 970M", "maxwell"),
            ("GTX 675M", "fermi"),
            ("GTX 675MX", "kepler"),
        ] {
            let found = matrix.name_matches(name).unwrap();
            let board = matrix.board(found[0].gpu.as_ref().unwrap());
            let own = board.architecture.map(|row| row.name.as_str());
            assert_eq!(own, Some(architecture), "{name}");
        }
        let found = matrix.name_matches("GTX 580").unwrap();
        let board = matrix.board(found[0].gpu.as_ref().unwrap());
        assert_eq!(
            board.architecture.map(|row| row.name.as_str()),
            Some("fermi")
        );
        assert_eq!(board.capability, None);
    }

    #[test]
    fn baseboards_and_numbers_of_boards_match() {
        let matrix = matrix();
        for (name, some, count, switches) in rows! {
            "8xH100", "H100 SXM5 80GB (10de:2330)", 8, Some(true);
            "8 x H100", "H100 SXM5 80GB (10de:2330)", 8, Some(true);
            "8 × H200 SXM", "H200 SXM (10de:2335)", 8, Some(true);
            "H100 x8", "H100 SXM5 80GB (10de:2330)", 8, Some(true);
            "8xH100 PCIe", "H100 PCIe (10de:2331)", 8, Some(false);
            "4xH100 SXM", "H100 SXM5 80GB (10de:2330)", 4, None;
            "8xL40S", "L40S (10de:26b9)", 8, Some(false);
            "HGX H100", "H100 SXM5 80GB (10de:2330)", 8, Some(true);
            "HGX H100 8-GPU", "H100 SXM5 80GB (10de:2330)", 8, Some(true);
            "DGX H100", "H100 SXM5 80GB (10de:2330)", 8, Some(true);
            "dgx-a100", "A100 SXM4 80GB (10de:20b2)", 8, Some(true);
            "DGX B200", "B200 (10de:2901)", 8, Some(true);
        } {
            let found = matrix.name_matches(name).unwrap();
            let label = format!("{count} × {some}");
            let one = found.iter().find(|one| one.label == label);
            let one = one.unwrap_or_else(|| panic!("{name}: {:?}", named(name)));
            assert_eq!((one.gpus, one.switches), (Some(count), switches), "{name}");
            // Eight boards with switches are not PCIe boards.
            let pcie = found.iter().any(|one| one.label.contains("PCIe"));
            assert_eq!(pcie, name.contains("PCIe"), "{name}");
        }
        assert_eq!(named("DGX Spark"), ["GB10 (10de:2e12)"]);
        for name in ["HGX L40S", "8x", "99xH100", "8xp5.48xlarge"] {
            assert!(matrix.name_matches(name).is_err(), "{name}");
        }
    }

    #[test]
    fn unknown_names_get_the_nearest_names() {
        let matrix = matrix();
        let unknown = matrix.name_matches("L40X").unwrap_err();
        // The data of the L40G is not complete.
        let suggests = |gpu: &str| unknown.nearest.iter().any(|name| name == gpu);
        assert!(suggests("L40S") && !suggests("L40G"), "{unknown}");
        for (name, gpu) in [("gpu_8x_h100_sxm5", "H100"), ("gpu_1x_gh200", "GH200")] {
            let unknown = matrix.name_matches(name).unwrap_err();
            assert_eq!(unknown.nearest, [gpu], "{unknown}");
            assert!(matrix.name_matches(gpu).is_ok());
        }
        for name in ["", "NVIDIA", "Voodoo", "H300X", "Tesla M2090"] {
            assert!(matrix.name_matches(name).is_err(), "{name}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_name_is_looked_up_without_panic(name in "(RTX|H100| |-|_|.)*") {
            let _ = matrix().name_matches(&name);
        }
    }
}

//! What identifies a GPU, and what kernel modules it runs with.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::pci::PciId;
use crate::model::text::{as_text, excerpt};

/// What tells one kind of GPU from another, as the machine shows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpuIdentity {
    /// Its PCI id.
    pub pci_id: PciId,
    /// The id of its board, where it could be read.
    pub subsystem_id: Option<PciId>,
    /// What `pci.ids` calls it, where the list has it.
    pub chip_name: Option<ChipName>,
}

/// A GPU's name in `pci.ids`: `GH100 [H100 SXM5 80GB]` is a chip and a product.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChipName {
    /// The chip: `GH100`.
    pub chip: String,
    /// The product: `H100 SXM5 80GB`.
    pub product: Option<String>,
}

/// A name in `pci.ids` without text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a name of a chip has at least one letter")]
pub struct ChipNameError;

impl ChipName {
    /// The product, or the chip where the list names no product.
    #[must_use]
    pub fn product_or_chip(&self) -> &str {
        self.product.as_ref().unwrap_or(&self.chip)
    }
}

impl FromStr for ChipName {
    type Err = ChipNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (chip, product) = match text.split_once('[') {
            Some((chip, rest)) => (chip, Some(rest.trim_end().trim_end_matches(']').trim())),
            None => (text, None),
        };
        let product = product.filter(|product| !product.is_empty());
        let chip = chip.trim();
        if chip.is_empty() && product.is_none() {
            return Err(ChipNameError);
        }
        Ok(Self {
            chip: chip.to_owned(),
            product: product.map(str::to_owned),
        })
    }
}

impl fmt::Display for ChipName {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.chip)?;
        match &self.product {
            Some(product) => write!(to, " [{product}]"),
            None => Ok(()),
        }
    }
}

as_text!(
    ChipName,
    "name of a GPU in pci.ids, such as GH100 [H100 SXM5 80GB]",
    "\\S"
);

/// A generation of GPUs, by its name in the matrix: `hopper`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Architecture(String);

/// An architecture without a name, or with spaces in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not the name of an architecture such as `hopper`")]
pub struct ArchitectureError {
    /// What was read.
    pub text: String,
}

impl Architecture {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Architecture {
    type Err = ArchitectureError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() || text.contains(char::is_whitespace) {
            return Err(ArchitectureError {
                text: excerpt(text),
            });
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.pad(&self.0)
    }
}

as_text!(Architecture, "GPU architecture, such as hopper", "^\\S+$");

/// How the architecture of a GPU is known, the surest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArchitectureEvidence {
    /// The matrix has a row for the GPU.
    Listed,
    /// `pci.ids` or `lspci` names its chip, which begins as those of the architecture.
    ChipName,
    /// Its id lies in a block of ids of the architecture.
    IdRange,
}

impl fmt::Display for ArchitectureEvidence {
    /// Completes "the architecture is known from …".
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.pad(match self {
            Self::Listed => "the matrix",
            Self::ChipName => "the name of its chip",
            Self::IdRange => "the range of its id",
        })
    }
}

/// Which of the two kernel module builds of a driver is meant.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Flavour {
    /// The open kernel modules: Turing and newer, the only ones for Blackwell and newer.
    Open,
    /// The proprietary kernel modules: the only ones before Turing.
    Proprietary,
}

impl fmt::Display for Flavour {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.pad(match self {
            Self::Open => "open",
            Self::Proprietary => "proprietary",
        })
    }
}

/// Which flavours of the kernel modules a GPU or an architecture runs with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SupportedFlavours {
    /// Only the open ones.
    Open,
    /// Only the proprietary ones.
    Proprietary,
    /// Both.
    Either,
}

impl SupportedFlavours {
    /// Whether a GPU runs with the modules of a flavour.
    #[must_use]
    pub fn include(self, flavour: Flavour) -> bool {
        match self {
            Self::Open => flavour == Flavour::Open,
            Self::Proprietary => flavour == Flavour::Proprietary,
            Self::Either => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_chips_and_products() {
        for (text, chip, product) in [
            ("GH100[H100 SXM5 80GB]", "GH100", Some("H100 SXM5 80GB")),
            ("GA102GL [A10G]", "GA102GL", Some("A10G")),
            ("AD104GL", "AD104GL", None),
        ] {
            let name: ChipName = text.parse().unwrap();
            assert_eq!(
                (name.chip.as_str(), name.product.as_deref()),
                (chip, product)
            );
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        assert_eq!("[]".parse::<ChipName>(), Err(ChipNameError));
    }

    #[test]
    fn flavours_that_a_gpu_runs_with() {
        assert!(SupportedFlavours::Either.include(Flavour::Open));
        assert!(SupportedFlavours::Open.include(Flavour::Open));
        assert!(!SupportedFlavours::Open.include(Flavour::Proprietary));
        assert!(!SupportedFlavours::Proprietary.include(Flavour::Open));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "(GH100|\\[|\\]| |.)*") {
            if let Ok(name) = text.parse::<ChipName>() {
                let _ = name.product_or_chip();
            }
        }
    }
}

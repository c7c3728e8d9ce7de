//! The identity of a GPU, and its kernel module flavors.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::pci::PciId;
use crate::text::{as_text, excerpt};

/// The identity of a GPU model, as read from the machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpuIdentity {
    /// Its PCI ID.
    pub pci_id: PciId,
    /// The subsystem ID of its board, if readable.
    pub subsystem_id: Option<PciId>,
    /// Its name in `pci.ids`, if listed.
    pub chip_name: Option<ChipName>,
}

/// A GPU name in `pci.ids`: `GH100 [H100 SXM5 80GB]` contains chip and product.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChipName {
    /// The chip: `GH100`.
    pub chip: String,
    /// The product: `H100 SXM5 80GB`.
    pub product: Option<String>,
}

/// An empty name in `pci.ids`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a chip name must not be empty")]
pub struct ChipNameError;

impl ChipName {
    /// The product, or the chip if there is no product name.
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

/// The name of a GPU generation in the matrix, such as `hopper`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Architecture(String);

/// An empty architecture name, or one with spaces.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not the name of an architecture such as `hopper`")]
pub struct ArchitectureError {
    /// The invalid text.
    pub text: String,
}

impl Architecture {
    /// The name.
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

/// The source of a GPU architecture, most reliable first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArchitectureEvidence {
    /// The matrix has an entry for the GPU.
    Listed,
    /// The chip name from `pci.ids` or `lspci` has a prefix of the architecture.
    ChipName,
    /// Its ID is in a range of the architecture.
    IdRange,
}

impl fmt::Display for ArchitectureEvidence {
    /// Completes "the architecture is known from …".
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.pad(match self {
            Self::Listed => "the matrix",
            Self::ChipName => "its chip name",
            Self::IdRange => "its ID range",
        })
    }
}

/// The kernel module flavor of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Flavor {
    /// The open kernel modules: Turing and newer, the only ones for Blackwell and newer.
    Open,
    /// The proprietary kernel modules: the only ones before Turing.
    Proprietary,
}

impl fmt::Display for Flavor {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.pad(match self {
            Self::Open => "open",
            Self::Proprietary => "proprietary",
        })
    }
}

/// The kernel module flavors that a GPU or an architecture supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SupportedFlavors {
    /// Only open.
    Open,
    /// Only proprietary.
    Proprietary,
    /// Both.
    Either,
}

impl SupportedFlavors {
    /// Returns `true` if a flavor is supported.
    pub fn include(self, flavor: Flavor) -> bool {
        match self {
            Self::Open => flavor == Flavor::Open,
            Self::Proprietary => flavor == Flavor::Proprietary,
            Self::Either => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chip_and_product_names_are_parsed() {
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
    fn supported_flavors_include_a_flavor() {
        assert!(SupportedFlavors::Either.include(Flavor::Open));
        assert!(SupportedFlavors::Open.include(Flavor::Open));
        assert!(!SupportedFlavors::Open.include(Flavor::Proprietary));
        assert!(!SupportedFlavors::Proprietary.include(Flavor::Open));
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

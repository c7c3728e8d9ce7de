//! The package managers that the archive in memory imitates.

use super::{
    dnf,
    tiny::{self, Tiny},
};
use crate::{
    host::{Output, fake::failed},
    tools::packages::{Backend, Manager},
};

/// The package manager whose commands and output are imitated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Apt,
    Dnf,
    Tiny,
}

impl Kind {
    /// The backend of this package manager.
    pub(super) fn backend(self) -> &'static dyn Backend {
        match self {
            Self::Apt => Manager::Apt.backend(),
            Self::Dnf => Manager::Dnf.backend(),
            Self::Tiny => &Tiny,
        }
    }

    pub(super) fn action(self, name: &str, from: Option<&str>, to: Option<&str>) -> String {
        match (self, from, to) {
            (Self::Apt, from, Some(to)) => {
                let from = from.map(|from| format!("[{from}] ")).unwrap_or_default();
                format!("Inst {name} {from}({to} Archive [amd64])\n")
            }
            (Self::Apt, from, None) => format!("Remv {name} [{}]\n", from.unwrap_or_default()),
            (Self::Dnf, from, to) => dnf::row(name, from, to),
            (Self::Tiny, from, to) => {
                format!("{name} {} {}\n", from.unwrap_or("-"), to.unwrap_or("-"))
            }
        }
    }

    /// The output of a failed command. `words` is in apt's format, and is converted to the format of this package manager.
    pub(super) fn failed(self, status: i32, words: &str) -> Output {
        match self {
            Self::Apt => failed(status, words),
            Self::Dnf => failed(1, dnf::words(apt().failure_class(words), words)),
            Self::Tiny => failed(status, tiny::words(apt().failure_class(words), words)),
        }
    }

    pub(super) fn owned_path(self, name: &str) -> String {
        match self {
            Self::Apt => format!("/var/lib/dpkg/info/{name}.list"),
            Self::Dnf => format!("{}/{name}", dnf::OWNED),
            Self::Tiny => format!("{}/{name}", tiny::OWNED),
        }
    }
}

fn apt() -> &'static dyn Backend {
    Manager::Apt.backend()
}

//! Parses versions as users type them: `CUDA 9.2`, `cu118`, `R580`, `nvidia-driver-535`, `580.x`.

use std::str::FromStr;

use crate::version::{Branch, CudaVersion, CudnnVersion, DriverVersion, VersionError};

/// A driver version or a whole branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DriverOrBranch {
    Version(DriverVersion),
    /// Only a branch. Its newest known version is evaluated.
    Branch(Branch),
}

impl DriverOrBranch {
    pub fn branch(&self) -> Branch {
        match self {
            Self::Version(version) => version.branch(),
            Self::Branch(branch) => *branch,
        }
    }
}

impl FromStr for DriverOrBranch {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let exact = |text: &str| -> Result<Self, VersionError> {
            match text.parse() {
                Ok(branch) => Ok(Self::Branch(branch)),
                Err(_) => text.parse().map(Self::Version),
            }
        };
        exact(text).or_else(|error| {
            let plain = bare(text).and_then(|plain| exact(&plain).ok());
            let package = || DriverVersion::from_package(text.trim()).ok();
            plain.or_else(|| package().map(Self::Version)).ok_or(error)
        })
    }
}

/// Strips the words that users and package names put around a driver version or branch.
fn bare(text: &str) -> Option<String> {
    let text = text.trim().to_lowercase();
    // Until 2007 the branch was not separated by a dot: 1.0-9755 belongs to branch 97.
    if let Some(old) = text.strip_prefix("1.0-").filter(|old| old.len() == 4) {
        return Some(format!("{}.{}", old.get(..2)?, old.get(2..)?));
    }
    let start = text.find(|c: char| c.is_ascii_digit())?;
    let before = text[..start].split(|c: char| !c.is_ascii_alphanumeric());
    let known = |word: &str| matches!(word, "" | "nvidia" | "driver" | "branch" | "v" | "r");
    let rest = &text[start..];
    let end = rest
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(rest.len());
    let (number, after) = rest.split_at(end);
    let number = number.trim_end_matches('.');
    let after = after.trim_start_matches(['-', '_', ' ']);
    let known_after = matches!(
        after,
        "" | "x" | "xx" | "xx.xx" | "*" | "server" | "open" | "server-open" | "dkms" | "open-dkms"
    );
    (before.into_iter().all(known) && known_after).then(|| number.to_owned())
}

/// Parses a CUDA version: `12.4`, `CUDA 12.4`, `cuda-12-4`, and the `cu124` of Python packages.
///
/// # Errors
/// If the text is not a CUDA version with at least a major and a minor number.
pub fn cuda(text: &str) -> Result<CudaVersion, VersionError> {
    text.parse().or_else(|error: VersionError| {
        let text = text.trim().to_lowercase();
        let number = ["cuda", "cu", "v"]
            .into_iter()
            .find_map(|word| text.strip_prefix(word));
        let number = number.unwrap_or(&text).trim_matches(['-', '_', ' ', 'v']);
        let digits = number.bytes().all(|b| b.is_ascii_digit());
        let number = match number.len() {
            // The last digit is the minor number.
            2..=3 if digits && text.starts_with("cu") => {
                let (major, minor) = number.split_at(number.len() - 1);
                format!("{major}.{minor}")
            }
            _ => number.replace('-', "."),
        };
        number.parse().map_err(|_| error)
    })
}

/// Parses a cuDNN version: `9.1`, `cuDNN 9.1.0`, `v8.9.7.29`.
///
/// # Errors
/// If the text is not a cuDNN version with at least a major and a minor number.
pub fn cudnn(text: &str) -> Result<CudnnVersion, VersionError> {
    let text = text.trim();
    let number = text.trim_start_matches(|c: char| c.is_ascii_alphabetic() || " -_".contains(c));
    number.parse().map_err(|_| VersionError::Cudnn {
        text: text.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::reads_any_text;

    #[test]
    fn driver_versions_of_any_age_are_parsed() {
        for (text, version) in [
            ("450.248.02", "450.248.02"),
            ("390.157", "390.157"),
            ("v535.104.05", "535.104.05"),
            ("535.183.01-0ubuntu0.22.04.1", "535.183.01"),
            ("3:580.65.06-1.el9", "580.65.06"),
            ("NVIDIA driver 470.57.02", "470.57.02"),
            ("173.14.39", "173.14.39"),
            ("96.43.23", "96.43.23"),
            ("1.0-9755", "97.55"),
        ] {
            let found: DriverOrBranch = text.parse().unwrap();
            let DriverOrBranch::Version(found) = found else {
                panic!("{text}: {found:?}");
            };
            assert_eq!(found.as_str(), version, "{text}");
        }
        for (text, branch) in [
            ("580", 580),
            ("R580", 580),
            ("580.x", 580),
            ("340.xx", 340),
            ("nvidia-driver-535-server", 535),
            ("branch 470", 470),
            ("71", 71),
        ] {
            let found: Result<DriverOrBranch, _> = text.parse();
            assert_eq!(found, Ok(DriverOrBranch::Branch(Branch(branch))), "{text}");
        }
        for text in [
            "",
            "latest",
            "6.8.0-45-generic",
            "5",
            "580.65.06.1.2",
            "H100",
            "-1",
        ] {
            assert!(text.parse::<DriverOrBranch>().is_err(), "{text}");
        }
    }

    #[test]
    fn cuda_versions_are_parsed_as_users_type_them() {
        for (text, version) in [
            ("12.4", "12.4"),
            ("CUDA 9.2", "9.2"),
            ("cuda-12-4", "12.4"),
            ("cu118", "11.8"),
            ("cu92", "9.2"),
            ("v12.4.1", "12.4.1"),
        ] {
            let found = cuda(text).map(|version| version.to_string());
            assert_eq!(found.as_deref(), Ok(version), "{text}");
        }
        for text in ["", "twelve", "12", "cu", "cuda", "12.4.1.2", "118"] {
            assert!(cuda(text).is_err(), "{text}");
        }
    }

    #[test]
    fn cudnn_versions_are_parsed_as_users_type_them() {
        for (text, version) in [
            ("9.1", "9.1"),
            ("cuDNN 9.1.0", "9.1"),
            ("v8.9.7.29", "8.9"),
            ("cudnn-9.17", "9.17"),
        ] {
            let found = cudnn(text).map(|version| version.to_string());
            assert_eq!(found.as_deref(), Ok(version), "{text}");
        }
        for text in ["", "nine", "9", "cudnn9", "9.1.0.70.1", "9.1-1", "9,1"] {
            assert!(cudnn(text).is_err(), "{text}");
        }
    }

    reads_any_text!(
        "(1.0-|cu|cuda|cudnn|R|nvidia|[0-9]|-|\\.|.)*",
        |text| text.parse::<DriverOrBranch>(); cuda(&text); cudnn(&text)
    );
}

//! Versions of drivers, CUDA, cuDNN and kernels. They are not semantic versions: each type has its own order and keeps the
//! original text.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use crate::text::{LONGEST, as_text, excerpt};

/// An invalid version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    /// Not a driver version.
    #[error("`{text}` is not an NVIDIA driver version such as `580.159.04`: {why}")]
    Driver {
        text: String,
        /// The reason.
        why: &'static str,
    },
    /// Not a driver branch.
    #[error("`{text}` is not an NVIDIA driver branch such as `580` or `R580`{}", suffix(.text))]
    Branch { text: String },
    /// Not a CUDA version.
    #[error("`{text}` is not a CUDA version such as `12.4` or `12.4.1`")]
    Cuda { text: String },
    /// Not a cuDNN version.
    #[error("`{text}` is not a cuDNN version such as `9.1` or `9.1.0.70`")]
    Cudnn { text: String },
    /// Not a kernel release.
    #[error("`{text}` is not a Linux kernel release such as `6.1.0-44-amd64`")]
    Kernel { text: String },
}

/// The correction if a branch has a suffix like that of a package name, such as `570-server-open`.
fn suffix(text: &str) -> String {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    match !number.is_empty() && rest.starts_with('-') {
        true => format!(
            ": the branch is `{number}`, and the flavor of the kernel modules is a separate setting (`driver.flavor`)"
        ),
        false => String::new(),
    }
}

/// The valid branch numbers. The oldest legacy branch is 71.
const BRANCHES: std::ops::Range<u32> = 71..10_000;

/// A driver branch, the first number of a driver version: 580 of `580.159.04`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Branch(pub u32);

impl FromStr for Branch {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_prefix(['R', 'r']).unwrap_or(text);
        parse_number(digits)
            .filter(|number| BRANCHES.contains(number))
            .map(Self)
            .ok_or_else(|| VersionError::Branch {
                text: excerpt(text),
            })
    }
}

impl fmt::Display for Branch {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}", self.0)
    }
}

as_text!(
    Branch,
    "NVIDIA driver branch, such as 580",
    "^[Rr]?[0-9]{2,4}$"
);

/// A driver version. Its parts are compared as numbers.
///
/// `580.65.06` and `580.65.6` are equal; `455.32` comes before `455.32.00`.
#[derive(Debug, Clone)]
pub struct DriverVersion {
    text: String,
    parts: Vec<u32>,
}

impl DriverVersion {
    /// The lowest branch in a package version that identifies a driver. Other packages with similar names have much lower
    /// versions, and all branches in the matrix are higher.
    pub const OLDEST_BRANCH: Branch = Branch(300);

    /// The branch that this version belongs to.
    pub fn branch(&self) -> Branch {
        Branch(self.parts.first().copied().unwrap_or_default())
    }

    /// The original text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns a lower and an upper bound of all versions of a branch. For branch 396, both are displayed as `396.x`.
    pub fn bounds(branch: Branch) -> [Self; 2] {
        [0, u32::MAX].map(|number| Self {
            text: format!("{branch}.x"),
            parts: vec![branch.0, number],
        })
    }

    /// Parses a Debian, Ubuntu or RPM package version, with epoch and revision: `3:580.65.06-1.el9` gives `580.65.06`.
    ///
    /// # Errors
    /// If the text between epoch and revision is not a driver version, for example a kernel version.
    pub fn from_package(version: &str) -> Result<Self, VersionError> {
        let after_epoch = version.split_once(':').map_or(version, |(_, rest)| rest);
        let end = after_epoch
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(after_epoch.len());
        // The rest must be a revision, not the end of a word.
        let (upstream, rest) = after_epoch.split_at(end);
        if !rest.is_empty() && !rest.starts_with(['-', '~', '+', '_']) {
            return Err(VersionError::Driver {
                text: excerpt(version),
                why: "the upstream version must consist of numbers",
            });
        }
        upstream.parse()
    }
}

impl FromStr for DriverVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |why| VersionError::Driver {
            text: excerpt(text),
            why,
        };
        let parts = text
            .split('.')
            .map(parse_number)
            .collect::<Option<Vec<u32>>>()
            .filter(|_| text.len() <= LONGEST)
            .ok_or_else(|| error("it must be numbers joined by dots"))?;
        if !(2..=4).contains(&parts.len()) {
            return Err(error("it must have two to four numbers"));
        }
        // This distinguishes a driver version from the kernel version that some module packages
        // carry.
        if !BRANCHES.contains(&parts[0]) {
            return Err(error("the branch must be a number from 71 on"));
        }
        Ok(Self {
            text: text.to_owned(),
            parts,
        })
    }
}

impl fmt::Display for DriverVersion {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.pad(&self.text)
    }
}

impl PartialEq for DriverVersion {
    fn eq(&self, other: &Self) -> bool {
        self.parts == other.parts
    }
}

impl Eq for DriverVersion {}

impl PartialOrd for DriverVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DriverVersion {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts.cmp(&other.parts)
    }
}

impl Hash for DriverVersion {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts.hash(state);
    }
}

as_text!(
    DriverVersion,
    "NVIDIA driver version, such as 580.159.04",
    r"^[0-9]{2,4}(\.[0-9]+){1,3}$"
);

/// A CUDA version. Without the third number it stands for all releases of the minor version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CudaVersion {
    /// 12 of `12.4.1`.
    pub major: u32,
    /// 4 of `12.4.1`.
    pub minor: u32,
    /// 1 of `12.4.1`, the update.
    pub patch: Option<u32>,
}

impl CudaVersion {
    /// The same version without the update.
    pub fn minor_version(self) -> Self {
        Self {
            patch: None,
            ..self
        }
    }
}

impl FromStr for CudaVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text
            .split('.')
            .map(parse_number)
            .collect::<Option<Vec<u32>>>();
        match parts.as_deref() {
            Some(&[major, minor]) => Ok(Self {
                major,
                minor,
                patch: None,
            }),
            Some(&[major, minor, patch]) => Ok(Self {
                major,
                minor,
                patch: Some(patch),
            }),
            _ => Err(VersionError::Cuda {
                text: excerpt(text),
            }),
        }
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}.{}", self.major, self.minor)?;
        self.patch.map_or(Ok(()), |patch| write!(to, ".{patch}"))
    }
}

as_text!(
    CudaVersion,
    "CUDA version, such as 12.4 or 12.4.1",
    r"^[0-9]+\.[0-9]+(\.[0-9]+)?$"
);

/// A cuDNN version. All releases of a minor version have the same requirements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CudnnVersion {
    /// 9 of `9.1.0.70`.
    pub major: u32,
    /// 1 of `9.1.0.70`.
    pub minor: u32,
}

impl FromStr for CudnnVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split('.').map(parse_number);
        match parts.collect::<Option<Vec<u32>>>().as_deref() {
            Some(&[major, minor, ref rest @ ..]) if rest.len() <= 2 => Ok(Self { major, minor }),
            _ => Err(VersionError::Cudnn {
                text: excerpt(text),
            }),
        }
    }
}

impl fmt::Display for CudnnVersion {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}.{}", self.major, self.minor)
    }
}

as_text!(
    CudnnVersion,
    "cuDNN version, such as 9.1",
    r"^[0-9]+(\.[0-9]+){1,3}$"
);

/// A kernel release as printed by `uname -r`. It is ordered by its leading mainline numbers, then
/// by the rest, in which numbers are compared as numbers, so that `-9` comes before `-44`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KernelVersion {
    text: String,
    mainline: [u32; 3],
    rest: usize,
}

impl KernelVersion {
    /// The original text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Major, minor and stable number; the default of the stable number is 0.
    ///
    /// A vendor's stable number has little meaning: Debian calls all its 6.1 kernels `6.1.0`.
    pub fn mainline(&self) -> [u32; 3] {
        self.mainline
    }

    /// Major and minor number: the mainline release that this kernel is based on.
    pub fn series(&self) -> (u32, u32) {
        (self.mainline[0], self.mainline[1])
    }

    /// Returns `true` for a kernel from kernel.org: only `-rcN` may follow the numbers. Any other kernel may contain backports, so
    /// its number does not determine its interfaces.
    pub fn is_mainline(&self) -> bool {
        let rest = &self.text[self.rest..];
        rest.is_empty()
            || rest
                .strip_prefix("-rc")
                .is_some_and(|n| parse_number(n).is_some())
    }

    /// The flavor of the distribution's kernel: `cloud-amd64` of `6.1.0-44-cloud-amd64`, `aws` of
    /// `6.8.0-1015-aws`, `rt` of `5.14.0-687.el9.x86_64+rt`; `None` if it has no flavors.
    pub fn flavor(&self) -> Option<&str> {
        let rest = &self.text[self.rest..];
        let after_dash = rest.split_once('-')?.1;
        let name = if after_dash.starts_with(|c: char| c.is_ascii_digit()) {
            // The first word is the ABI or the release number; RPM names have the variant after a
            // plus sign.
            after_dash
                .split_once('-')
                .or_else(|| after_dash.split_once('+'))?
                .1
        } else {
            after_dash
        };
        (!name.is_empty() && !self.is_mainline()).then_some(name)
    }
}

impl FromStr for KernelVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || VersionError::Kernel {
            text: excerpt(text),
        };
        let is_wrong = |c: char| c.is_whitespace() || c == '/' || c.is_control();
        if text.len() > LONGEST || text.contains(is_wrong) {
            return Err(error());
        }
        let end = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let numbers = text[..end].trim_end_matches('.');
        let parts = numbers
            .split('.')
            .map(parse_number)
            .collect::<Option<Vec<u32>>>();
        let (mainline, used) = match parts.as_deref() {
            Some(&[major, minor]) => ([major, minor, 0], numbers.len()),
            // Some vendors add their own numbers, as in `4.18.0.1`.
            Some(&[major, minor, stable, ..]) => ([major, minor, stable], numbers.len()),
            _ => return Err(error()),
        };
        Ok(Self {
            text: text.to_owned(),
            mainline,
            rest: used,
        })
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.pad(&self.text)
    }
}

impl PartialOrd for KernelVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for KernelVersion {
    fn cmp(&self, other: &Self) -> Ordering {
        self.mainline
            .cmp(&other.mainline)
            .then_with(|| natural(&self.text[self.rest..], &other.text[other.rest..]))
            .then_with(|| self.text.cmp(&other.text))
    }
}

as_text!(
    KernelVersion,
    "Linux kernel release, such as 6.1.0-44-amd64",
    r"^[0-9]+\.[0-9]+\S*$"
);

/// A number without a sign; `str::parse` would accept `+5`.
fn parse_number(digits: &str) -> Option<u32> {
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

/// Compares text; runs of digits are compared as numbers.
fn natural(left: &str, right: &str) -> Ordering {
    let (mut left, mut right) = (left, right);
    loop {
        let (a, a_rest) = next_run(left);
        let (b, b_rest) = next_run(right);
        let order = match (a.is_empty(), b.is_empty()) {
            (true, true) => return Ordering::Equal,
            (true, false) => return Ordering::Less,
            (false, true) => return Ordering::Greater,
            _ if a.as_bytes()[0].is_ascii_digit() && b.as_bytes()[0].is_ascii_digit() => {
                let (x, y) = (a.trim_start_matches('0'), b.trim_start_matches('0'));
                x.len().cmp(&y.len()).then_with(|| x.cmp(y))
            }
            _ => a.cmp(b),
        };
        if order != Ordering::Equal {
            return order;
        }
        (left, right) = (a_rest, b_rest);
    }
}

/// The first run of digits or of other characters, and the rest.
fn next_run(text: &str) -> (&str, &str) {
    let digit = text.starts_with(|c: char| c.is_ascii_digit());
    let end = text
        .find(|c: char| c.is_ascii_digit() != digit)
        .unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(text: &str) -> DriverVersion {
        text.parse().unwrap()
    }

    fn kernel(text: &str) -> KernelVersion {
        text.parse().unwrap()
    }

    #[test]
    fn driver_versions_are_compared_by_number() {
        assert!(driver("580.65.06") < driver("580.119.02"));
        assert!(driver("535.309.01") < driver("580.65.06"));
        assert!(driver("455.32") < driver("455.32.00"));
        assert_eq!(driver("580.65.06"), driver("580.65.6"));
        assert_eq!(driver("580.65.06").to_string(), "580.65.06");
        assert_eq!(driver("580.65.06").branch(), Branch(580));
    }

    #[test]
    fn invalid_driver_versions_are_rejected() {
        for text in [
            "",
            "580",
            "580.",
            "580.a.1",
            "6.8.0",
            "580.1.2.3.4",
            "580.65.06-1",
            "+580.1",
            "580 .1",
        ] {
            assert!(text.parse::<DriverVersion>().is_err(), "{text}");
        }
    }

    #[test]
    fn package_versions_give_the_upstream_version() {
        for (package, upstream) in [
            ("535.261.03-1~deb12u1", "535.261.03"),
            ("3:580.65.06-1.el9", "580.65.06"),
            ("580.178.04-0ubuntu0.24.04.1", "580.178.04"),
            ("550.163.01-4~bpo12+1", "550.163.01"),
            ("580.95.05", "580.95.05"),
            ("1:570.86.15~ds-1", "570.86.15"),
        ] {
            assert_eq!(
                DriverVersion::from_package(package).unwrap().as_str(),
                upstream
            );
        }
        for other in ["6.8.0-90.91+1", "", "20240101-1", "1.17.8-1", "580.65x-1"] {
            assert!(DriverVersion::from_package(other).is_err(), "{other}");
        }
    }

    #[test]
    fn branches() {
        assert_eq!("580".parse(), Ok(Branch(580)));
        assert_eq!("R580".parse(), Ok(Branch(580)));
        assert_eq!(Branch(580).to_string(), "580");
        for text in ["", "R", "58", "R580.1", "-580", "99999"] {
            assert!(text.parse::<Branch>().is_err(), "{text}");
        }
        // Only the suffix of a package name is a flavor.
        for (text, advises) in [("570-open", true), ("570.133", false), ("-open", false)] {
            let error = text.parse::<Branch>().unwrap_err().to_string();
            assert_eq!(error.contains("`driver.flavor`"), advises, "{error}");
        }
    }

    #[test]
    fn cuda_versions() {
        let cuda = |text: &str| text.parse::<CudaVersion>().unwrap();
        assert!(cuda("11.8") < cuda("12.0"));
        assert!(cuda("12.9") < cuda("12.10"));
        assert!(cuda("12.4") < cuda("12.4.1"));
        assert_eq!(cuda("12.4.1").to_string(), "12.4.1");
        assert_eq!(cuda("12.4.1").minor_version(), cuda("12.4"));
        for text in ["", "12", "12.", "12.x", "12.4.1.0"] {
            assert!(text.parse::<CudaVersion>().is_err(), "{text}");
        }
    }

    #[test]
    fn kernels_are_ordered_by_number() {
        let order = [
            "5.14.0-427.13.1.el9_4.x86_64",
            "5.14.0-687.12.1.el9_8.x86_64",
            "6.1.0-9-amd64",
            "6.1.0-44-amd64",
            "6.1.0-44-cloud-amd64",
            "6.1.0-44-rt-amd64",
            "6.4",
            "6.12.48+deb13-amd64",
            "6.19",
        ];
        for pair in order.windows(2) {
            assert!(kernel(pair[0]) < kernel(pair[1]), "{pair:?}");
        }
        for text in ["", "6", "amd64", "6.x", "6.1 .0", "../6.1"] {
            assert!(text.parse::<KernelVersion>().is_err(), "{text}");
        }
    }

    #[test]
    fn kernel_flavors() {
        for (text, flavor, mainline) in [
            ("6.1.0-44-cloud-amd64", Some("cloud-amd64"), false),
            ("6.1.0-44-amd64", Some("amd64"), false),
            ("6.8.0-1015-aws", Some("aws"), false),
            ("6.12.48+deb13-cloud-amd64", Some("cloud-amd64"), false),
            ("5.14.0-687.12.1.el9_8.x86_64", None, false),
            ("5.14.0-687.el9.x86_64+rt", Some("rt"), false),
            ("6.19", None, true),
            ("6.19.3", None, true),
            ("7.0.0-rc4", None, true),
        ] {
            assert_eq!(kernel(text).flavor(), flavor, "{text}");
            assert_eq!(kernel(text).is_mainline(), mainline, "{text}");
        }
        assert_eq!(kernel("6.19").mainline(), [6, 19, 0]);
        assert_eq!(kernel("5.14.0-687.el9.x86_64").series(), (5, 14));
    }

    #[test]
    fn versions_are_strings_in_json() {
        let text = serde_json::to_string(&(Branch(580), driver("580.65.06"))).unwrap();
        assert_eq!(text, r#"["580","580.65.06"]"#);
        let back: (Branch, DriverVersion) = serde_json::from_str(&text).unwrap();
        assert_eq!(back, (Branch(580), driver("580.65.06")));
        assert!(serde_json::from_str::<CudaVersion>("\"x\"").is_err());
    }
}

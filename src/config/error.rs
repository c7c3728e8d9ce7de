//! Configuration errors, with a location and, if possible, a hint.

use camino::Utf8PathBuf;

use crate::{
    config::location::{Location, PREFIX},
    error::{Report, one_line},
    exit::Exit,
    host::FilesError,
    model::text::{nearest, shell_word},
};

/// An invalid profile or setting.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file is not readable.
    #[error("read the configuration")]
    Files(#[from] FilesError),
    /// The package sources of the machine are not readable.
    #[error("read the package sources of this machine")]
    Sources(#[source] FilesError),
    /// A requested file does not exist.
    #[error("read `{path}`: no such file")]
    MissingFile { path: Utf8PathBuf },
    /// A dangling symlink instead of a settings file or directory.
    #[error("read `{path}`: dangling symlink to `{target}`")]
    DeadLink {
        /// The symlink.
        path: Utf8PathBuf,
        /// Its target.
        target: Utf8PathBuf,
    },
    /// Invalid TOML, or not a valid profile.
    #[error("read {place}: {why}")]
    Syntax {
        /// The location.
        place: Location,
        /// The parser message.
        why: String,
    },
    /// An unknown key.
    #[error("read {place}: unknown key `{key}`")]
    UnknownKey {
        /// The location.
        place: Location,
        /// The full dotted key.
        key: String,
        /// The nearest existing key.
        nearest: Option<String>,
    },
    /// A value that is invalid for its key.
    #[error("read {place}: `{key}` cannot be {value}: {why}")]
    Value {
        /// The location.
        place: Box<Location>,
        /// The full dotted key.
        key: String,
        /// The value as TOML.
        value: String,
        /// The reason.
        why: String,
        /// The correction, if known.
        hint: Option<String>,
    },
    /// An inconsistent profile, for example with a reference to a missing part.
    #[error("use profile {file}: {why}")]
    Profile {
        file: String,
        /// The reason.
        why: String,
    },
    /// There is no profile with this name.
    #[error("find profile `{name}`")]
    NoSuchProfile {
        name: String,
        /// The existing names.
        known: Vec<String>,
    },
    /// `os-release` is not readable and no profile was specified.
    #[error("choose a profile: the operating system is unknown")]
    UnknownOs,
    /// No profile supports this operating system.
    #[error("choose a profile: {os} is not supported")]
    UnsupportedOs {
        /// The operating system.
        os: String,
        supported: Vec<String>,
    },
    /// Several errors, at least one of them in the settings.
    #[error("{}", joined(.0))]
    Several(Vec<ResolveError>),
}

/// Joins several errors to one line.
fn joined(errors: &[ResolveError]) -> String {
    let all: Vec<String> = errors.iter().map(|error| one_line(error)).collect();
    all.join("; ")
}

impl ConfigError {
    /// Combines all errors into one.
    ///
    /// # Errors
    /// If there are any.
    pub(super) fn unless_none(mut found: Vec<Self>) -> Result<(), Self> {
        match found.len() {
            0 => Ok(()),
            1 => Err(found.remove(0)),
            _ => {
                let parts = found.into_iter().flat_map(|error| match error {
                    Self::Several(parts) => parts,
                    one => vec![one.into()],
                });
                Err(Self::Several(parts.collect()))
            }
        }
    }

    /// Converts an error of the TOML parser, with its location in the file.
    pub(super) fn syntax(file: &str, text: &str, error: &toml::de::Error) -> Self {
        let byte = error.span().map_or(0, |span| span.start);
        Self::Syntax {
            place: Location::in_file(file, text, byte),
            why: error.message().trim().replace('\n', "; "),
        }
    }
}

impl Report for ConfigError {
    fn exit(&self) -> Exit {
        match self {
            Self::UnknownOs | Self::UnsupportedOs { .. } => Exit::Blocked,
            // Settings may be readable only by root.
            Self::Files(FilesError::Io { source, .. })
                if source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                Exit::NotPermitted
            }
            // `Several` contains an error in the settings, which must be fixed first.
            _ => Exit::Config,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Files(error) => error.reason().unwrap_or("config-unreadable"),
            Self::Sources(_) => "sources-unreadable",
            Self::MissingFile { .. } | Self::DeadLink { .. } => "config-missing",
            Self::Syntax { .. } => "config-syntax",
            Self::UnknownKey { .. } => "config-unknown-key",
            Self::Value { .. } => "config-value",
            Self::Profile { .. } => "profile-invalid",
            Self::NoSuchProfile { .. } => "profile-unknown",
            Self::UnknownOs => "os-unknown",
            Self::UnsupportedOs { .. } => "os-unsupported",
            Self::Several(errors) => errors.first().map_or("config-value", Report::reason),
        }
    }

    fn parts(&self) -> Vec<&dyn Report> {
        match self {
            Self::Several(errors) => errors.iter().map(|error| error as &dyn Report).collect(),
            _ => Vec::new(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownKey { nearest, place, .. } => Some(match (nearest, place) {
                (Some(key), Location::Env { .. }) => format!(
                    "did you mean `{key}`? Its variable is `{PREFIX}{}`",
                    key.replace('.', "__").replace('-', "_").to_uppercase()
                ),
                (Some(key), _) => format!("did you mean `{key}`?"),
                (None, _) => "run `gpu-bootstrap config --defaults` to list all keys".into(),
            }),
            Self::Value { hint, .. } => hint.clone(),
            Self::NoSuchProfile { name, known } => {
                let nearest = nearest(name, known.iter().map(String::as_str));
                Some(match nearest {
                    Some(nearest) => format!("did you mean `{nearest}`?"),
                    None => format!(
                        "use one of the profiles {}, or a file path",
                        known.join(", ")
                    ),
                })
            }
            Self::UnknownOs => Some("set `profile`".into()),
            Self::UnsupportedOs { supported, .. } => Some(format!(
                "supported: {}. For a derived distribution, set `profile`",
                supported.join("; ")
            )),
            Self::Files(_) if self.exit() == Exit::NotPermitted => Some("run it as root".into()),
            Self::Files(error) => error.hint(),
            Self::DeadLink { path, target } => Some(format!(
                "create `{target}`, or remove the symlink: `rm {}`",
                shell_word(path)
            )),
            Self::Syntax {
                place: Location::File { .. },
                ..
            } => Some(
                "use TOML: `KEY = VALUE` below a `[TABLE]` line, with text and versions in quotes"
                    .into(),
            ),
            Self::Several(errors) => {
                let hints: Vec<String> = errors.iter().filter_map(Report::hint).collect();
                (!hints.is_empty()).then(|| hints.join("; "))
            }
            Self::Sources(_) | Self::MissingFile { .. } | Self::Syntax { .. } => None,
            Self::Profile { .. } => Some("profiles are described in docs/configuration.md".into()),
        }
    }
}

/// The machine does not support the desired state. Nothing was changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("resolve the configuration of this machine: {why}")]
pub struct Refusal {
    /// A stable identifier for scripts.
    pub reason: &'static str,
    /// The reason, with the compared values.
    pub why: String,
    /// The remedy.
    pub hint: Option<String>,
}

impl Refusal {
    pub(super) fn new(reason: &'static str, why: String, hint: impl Into<String>) -> Self {
        Self {
            reason,
            why,
            hint: Some(hint.into()),
        }
    }
}

/// Returns the value, or adds the error to the list.
pub(super) fn or_noted<T, E: Into<ResolveError>>(
    result: Result<T, E>,
    wrong: &mut Vec<ResolveError>,
) -> Option<T> {
    result.map_err(|error| wrong.push(error.into())).ok()
}

/// The reason that the desired state could not be resolved.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// Invalid configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The machine does not support the configuration.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl Report for Refusal {
    fn exit(&self) -> Exit {
        Exit::Blocked
    }

    fn reason(&self) -> &'static str {
        self.reason
    }

    fn hint(&self) -> Option<String> {
        self.hint.clone()
    }
}

impl ResolveError {
    /// Combines all errors into one. Without errors in the settings, only the first rejection counts, because the
    /// others may be consequences of it.
    pub(super) fn all(mut found: Vec<Self>) -> Self {
        let is_written = |error: &Self| !error.is_of_the_machine();
        if found.len() == 1 || (!found.is_empty() && !found.iter().any(is_written)) {
            return found.remove(0);
        }
        let parts = found.into_iter().flat_map(|error| match error {
            Self::Config(ConfigError::Several(parts)) => parts,
            one => vec![one],
        });
        ConfigError::Several(parts.collect()).into()
    }

    /// Returns whether the error is due to the machine instead of the configuration. `check` continues after such an error.
    pub const fn is_of_the_machine(&self) -> bool {
        match self {
            Self::Refused(_) => true,
            Self::Config(error) => matches!(
                error,
                ConfigError::UnknownOs
                    | ConfigError::UnsupportedOs { .. }
                    | ConfigError::Sources(_)
            ),
        }
    }
}

impl Report for ResolveError {
    fn exit(&self) -> Exit {
        match self {
            Self::Config(error) => error.exit(),
            Self::Refused(error) => error.exit(),
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Config(error) => error.reason(),
            Self::Refused(error) => error.reason(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Config(error) => error.hint(),
            Self::Refused(error) => error.hint(),
        }
    }

    fn parts(&self) -> Vec<&dyn Report> {
        match self {
            Self::Config(error) => error.parts(),
            Self::Refused(_) => Vec::new(),
        }
    }
}

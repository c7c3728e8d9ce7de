//! What can be wrong with configuration, with the place and, where there is one, a hint.

use camino::Utf8PathBuf;

use crate::{
    config::place::{PREFIX, Place},
    error::{Report, one_line},
    exit::Exit,
    host::FilesError,
    model::text::nearest,
};

/// A profile or a setting that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file could not be read.
    #[error("read the configuration")]
    Files(#[from] FilesError),
    /// The package sources of the machine could not be read.
    #[error("read the package sources of this machine")]
    Sources(#[source] FilesError),
    /// A file that was asked for is not there.
    #[error("read `{path}`: there is no such file")]
    MissingFile { path: Utf8PathBuf },
    /// A link in the place of a file or a folder with settings, and nothing at its end.
    #[error("read `{path}`: it is a link to `{target}`, where nothing is")]
    DeadLink {
        /// The link.
        path: Utf8PathBuf,
        /// Where it leads.
        target: Utf8PathBuf,
    },
    /// Not TOML, or not of the form of a profile.
    #[error("read {place}: {why}")]
    Syntax {
        /// Where.
        place: Place,
        /// What the parser says.
        why: String,
    },
    /// A key that does not exist.
    #[error("read {place}: there is no key `{key}`")]
    UnknownKey {
        /// Where.
        place: Place,
        /// The whole key, dotted.
        key: String,
        /// The nearest key that exists.
        nearest: Option<String>,
    },
    /// A value that does not fit its key.
    #[error("read {place}: `{key}` cannot be {value}: {why}")]
    Value {
        /// Where.
        place: Box<Place>,
        /// The whole key, dotted.
        key: String,
        /// The value, as it would be written in TOML.
        value: String,
        /// What is wrong with it.
        why: String,
        /// What to write instead, where that can be said.
        hint: Option<String>,
    },
    /// A profile with a part that refers to something that does not exist.
    #[error("use profile {file}: {why}")]
    Profile {
        file: String,
        /// What is wrong.
        why: String,
    },
    /// No profile of this name.
    #[error("find profile `{name}`")]
    NoSuchProfile {
        name: String,
        /// The names that exist.
        known: Vec<String>,
    },
    /// `os-release` could not be read and no profile was named.
    #[error("choose a profile: the operating system is unknown")]
    UnknownOs,
    /// No profile serves this operating system.
    #[error("choose a profile: {os} is not supported")]
    UnsupportedOs {
        /// What runs.
        os: String,
        supported: Vec<String>,
    },
    /// Several errors, of which at least one is of the settings.
    #[error("{}", joined(.0))]
    Several(Vec<ResolveError>),
}

/// Several errors on one line, for words in between.
fn joined(errors: &[ResolveError]) -> String {
    let all: Vec<String> = errors.iter().map(|error| one_line(error)).collect();
    all.join("; ")
}

impl ConfigError {
    /// All that was found wrong as one error.
    ///
    /// # Errors
    /// If anything was found.
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

    /// The error of the TOML parser, with its place in the file.
    pub(super) fn syntax(file: &str, text: &str, error: &toml::de::Error) -> Self {
        let byte = error.span().map_or(0, |span| span.start);
        Self::Syntax {
            place: Place::in_file(file, text, byte),
            why: error.message().trim().replace('\n', "; "),
        }
    }
}

impl Report for ConfigError {
    fn exit(&self) -> Exit {
        match self {
            Self::UnknownOs | Self::UnsupportedOs { .. } => Exit::Blocked,
            // Settings may be for root alone.
            Self::Files(FilesError::Io { source, .. })
                if source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                Exit::NotPermitted
            }
            // What somebody wrote can be mended before the machine.
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
                (Some(key), Place::Env { .. }) => format!(
                    "did you mean `{key}`? Its variable is `{PREFIX}{}`",
                    key.replace('.', "__").replace('-', "_").to_uppercase()
                ),
                (Some(key), _) => format!("did you mean `{key}`?"),
                (None, _) => "`gpu-bootstrap config --defaults` lists every key".into(),
            }),
            Self::Value { hint, .. } => hint.clone(),
            Self::NoSuchProfile { name, known } => {
                let nearest = nearest(name, known.iter().map(String::as_str));
                Some(match nearest {
                    Some(nearest) => format!("did you mean `{nearest}`?"),
                    None => format!(
                        "profiles are {}; a path to a file works too",
                        known.join(", ")
                    ),
                })
            }
            Self::UnknownOs => Some("name the profile with `--profile`".into()),
            Self::UnsupportedOs { supported, .. } => Some(format!(
                "supported are {}; for a close relative of one, name its profile with `--profile`",
                supported.join("; ")
            )),
            Self::Files(_) if self.exit() == Exit::NotPermitted => Some("run it as root".into()),
            Self::Files(error) => error.hint(),
            Self::DeadLink { path, target } => Some(format!(
                "put the settings at `{target}`, or remove the link: `rm {path}`"
            )),
            Self::Syntax {
                place: Place::File { .. },
                ..
            } => Some(
                "settings are TOML: `KEY = VALUE` below the line `[TABLE]`, text and versions in quotes"
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

/// The machine cannot be in the desired state; nothing was changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("resolve the configuration of this machine: {why}")]
pub struct Refusal {
    /// A stable word for scripts.
    pub reason: &'static str,
    /// Why, with the values compared.
    pub why: String,
    /// What would help.
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

/// The value, or what is wrong, which is put to the rest.
pub(super) fn or_noted<T, E: Into<ResolveError>>(
    result: Result<T, E>,
    wrong: &mut Vec<ResolveError>,
) -> Option<T> {
    result.map_err(|error| wrong.push(error.into())).ok()
}

/// Why the desired state could not be resolved.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The machine does not allow it.
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
    /// What was found wrong, as one error. Where nothing is wrong with the settings, the first refusal counts: the
    /// others may follow from it.
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

    /// Whether the machine is the reason, and not what somebody wrote: an audit goes on then.
    #[must_use]
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

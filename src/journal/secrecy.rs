//! Secrets and journal records: free text is stored without the secrets of the run. Everything that
//! a later run reads back (names, paths, digests, ids, undos) is stored unchanged.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{JournalError, Record};
use crate::model::secret::Secrets;

impl Record {
    /// Refuses the record of something that is about to happen, if a secret occurs in one of its
    /// names: in clear it would leak the secret, without the secret it could not be undone. The
    /// record of something that has happened is never refused, so that its undo is not lost.
    ///
    /// # Errors
    /// [`JournalError::SecretInName`].
    pub(super) fn refuse_secret_names(&self, secrets: &Secrets) -> Result<(), JournalError> {
        let names = match self {
            Self::RunStarted { request, .. } => (request.profile.iter().cloned())
                .chain(request.config.iter().map(ToString::to_string))
                .collect(),
            Self::Intent { change, undo, .. } => {
                let mut names = names_in(change)?;
                names.extend(names_in(undo)?);
                names
            }
            _ => Vec::new(),
        };
        match names.into_iter().find(|name| secrets.are_in(name)) {
            Some(name) => Err(JournalError::SecretInName { name }),
            None => Ok(()),
        }
    }

    /// The record without the secrets in its free text.
    ///
    /// # Errors
    /// [`JournalError::Encode`].
    pub(super) fn without_secrets(mut self, secrets: &Secrets) -> Result<Self, JournalError> {
        let texts: Vec<&mut String> = match &mut self {
            // The settings that are needed after a reboot are in the credentials, with their secrets.
            Self::RunStarted { request, .. } => request.set.iter_mut().collect(),
            Self::Intent { change, .. } => {
                *change = hide_free_text(change, secrets)?;
                Vec::new()
            }
            Self::Failed {
                message, causes, ..
            } => std::iter::once(message).chain(causes).collect(),
            Self::Reverted { what, .. } | Self::Reduced { what, .. } => vec![what],
            Self::Left { why, .. }
            | Self::RebootAwaited { why, .. }
            | Self::GaveUp { why }
            | Self::GoingBack { why, .. } => {
                vec![why]
            }
            // Names and versions of packages.
            Self::Proven { .. }
            | Self::WentBack { .. }
            | Self::Applied { .. }
            | Self::Interrupted { .. }
            | Self::RunFinished { .. } => Vec::new(),
        };
        for text in texts {
            *text = secrets.hide(text).into_owned();
        }
        Ok(self)
    }
}

/// What a text of a change or an undo is for a later run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextRole {
    /// It reads it back.
    Name,
    /// It reads it back, and the names of the fields, too: this is a map.
    NameByName,
    /// It never reads it.
    FreeText,
    /// It reads it back, and this program made it: a word, a digest or an id.
    Own,
}

/// The meaning of a field of a verb. What is not named here is a name, so that nothing new is stored with a secret.
fn meaning(verb: &str, field: &str) -> TextRole {
    match (verb, field) {
        ("write-file", "content")
        | ("run-tool", "purpose" | "command")
        | ("run-probe", "inputs" | "image")
        | ("join-cluster", "command" | "leave-command")
        | ("reboot", "why") => TextRole::FreeText,
        (_, "undo" | "kind" | "is" | "then" | "probe")
        | (_, "sha256" | "fingerprints" | "architectures" | "signed" | "machine")
        | ("pull-image" | "run-probe" | "remove-image", "runtime")
        | ("packages", "before")
        | ("unhold", "record") => TextRole::Own,
        (_, "values" | "labels" | "ours") => TextRole::NameByName,
        _ => TextRole::Name,
    }
}

/// Shows each text in the JSON form of a change or an undo.
fn visit(value: &mut Value, verb: &str, is: TextRole, see: &mut impl FnMut(TextRole, &mut String)) {
    match value {
        Value::String(text) => see(is, text),
        Value::Array(values) => {
            for value in values {
                visit(value, verb, is, see);
            }
        }
        Value::Object(fields) if is == TextRole::NameByName => {
            for (name, value) in fields {
                see(TextRole::Name, &mut name.clone());
                visit(value, verb, TextRole::Name, see);
            }
        }
        Value::Object(fields) => {
            let tag = fields.get("undo").or_else(|| fields.get("kind"));
            let verb = &*tag.and_then(Value::as_str).unwrap_or(verb).to_owned();
            for (field, value) in fields {
                visit(value, verb, meaning(verb, field), see);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// What a change or an undo names on the machine.
fn names_in(what: &impl Serialize) -> Result<Vec<String>, JournalError> {
    let mut json = serde_json::to_value(what).map_err(JournalError::Encode)?;
    let mut names = Vec::new();
    visit(
        &mut json,
        "",
        TextRole::Name,
        &mut |is: TextRole, text: &mut String| {
            if is == TextRole::Name {
                names.push(text.clone());
            }
        },
    );
    Ok(names)
}

/// A change without the secrets in its free text.
fn hide_free_text<T: Serialize + DeserializeOwned>(
    what: &T,
    secrets: &Secrets,
) -> Result<T, JournalError> {
    let mut json = serde_json::to_value(what).map_err(JournalError::Encode)?;
    visit(
        &mut json,
        "",
        TextRole::Name,
        &mut |is: TextRole, text: &mut String| {
            if is == TextRole::FreeText {
                *text = secrets.hide(text).into_owned();
            }
        },
    );
    serde_json::from_value(json).map_err(JournalError::Encode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        change::{
            Change, FileAfter, FileBefore, Leave, LeaveCluster, Probe, Undo,
            packages::{Effects, Unhold},
        },
        config::desired::RuntimeKind,
        error::Report,
        exit::Exit,
        host::fake,
        journal::{Journal, Request},
        model::{id::StepId, packages::PackageWish, secret::Secret},
    };

    /// A digest with this text in it.
    fn digest(inside: &str) -> String {
        format!("{inside:0<64}")
    }

    fn intent(change: Change, undo: Undo) -> Record {
        Record::Intent {
            steps: vec![StepId::new("a")],
            change,
            undo,
        }
    }

    fn write(path: &str, content: &str) -> Change {
        Change::WriteFile {
            path: path.into(),
            content: content.to_owned(),
            mode: 0o600,
            over: None,
        }
    }

    fn install(name: &str) -> Change {
        Change::InstallPackages {
            packages: vec![PackageWish {
                name: name.to_owned(),
                version: None,
            }],
            removing: Vec::new(),
            later: false,
        }
    }

    fn nothing() -> Undo {
        Undo::Nothing { why: String::new() }
    }

    /// What a later run reads of these records.
    fn kept(secrets: &[&str], records: Vec<Record>) -> Result<Vec<Record>, JournalError> {
        let known = Secrets::default();
        for secret in secrets {
            known.learn(&Secret::new(*secret));
        }
        let (host, fakes) = fake::host();
        fakes.files.put_folder("/var/lib", 0o755);
        let (journal, _) = Journal::open(&host, "run", &known)?;
        let appended = records
            .into_iter()
            .try_for_each(|record| journal.append(record).map(|_| ()));
        let lines = Journal::read(&host)?.lines.clone();
        appended?;
        Ok(lines.into_iter().map(|line| line.record).collect())
    }

    #[test]
    fn an_undo_and_names_are_kept_whatever_the_secrets_are() {
        let undo = Undo::Several {
            undos: vec![
                Undo::Packages {
                    transaction: "20261101T101112.000000000-1".to_owned(),
                    effects: Some(Box::new(Effects {
                        appeared: ["docker.io".to_owned()].into(),
                        there: ["/etc/docker/daemon.json".into()].into(),
                        ..Effects::default()
                    })),
                },
                Undo::RestoreFiles {
                    files: vec![FileBefore {
                        path: "/etc/a".into(),
                        before: None,
                        after: FileAfter::File {
                            sha256: digest("abc123"),
                        },
                    }],
                    created_folders: Vec::new(),
                    daemon: None,
                },
            ],
        };
        let applied = Record::Applied { intent: 0, undo };
        // A login without a password, a part of a digest, of a name, of a time, and names of fields.
        let secrets = [
            "http://docker@proxy:3128",
            "http://joe:docker@proxy:3128",
            "abc123",
            "intent",
            "schema",
            "record",
            "applied",
            "sha256",
            "20261101",
        ];
        let records = kept(&secrets, vec![applied.clone()]).unwrap();
        assert_eq!(records, [applied]);
    }

    #[test]
    fn free_text_is_hidden() {
        let secret = "abcdef.0123";
        let text = || format!("a {secret} b");
        let records = vec![
            Record::RunStarted {
                tool: "0.0.0".to_owned(),
                mode: "install".to_owned(),
                instance_id: None,
                boot_id: None,
                request: Request {
                    set: vec![text()],
                    ..Request::default()
                },
                policy: None,
            },
            intent(write("/etc/a", &text()), nothing()),
            intent(
                Change::RunTool {
                    purpose: text(),
                    command: vec![text()],
                    writes: vec!["/etc/a".into()],
                    repeated: false,
                },
                nothing(),
            ),
            intent(Change::Reboot { why: text() }, nothing()),
            intent(
                Change::RunProbe {
                    probe: Probe::ContainerSeesGpus {
                        runtime: RuntimeKind::Docker,
                        image: Some(text()),
                        gpus: 1,
                        driver: "580.95.05".to_owned(),
                        uuids: Vec::new(),
                        timeout_seconds: 5,
                        pull_timeout_seconds: 5,
                    },
                    record: "proofs/docker".into(),
                    inputs: text(),
                    again: false,
                },
                nothing(),
            ),
            Record::Failed {
                intent: 1,
                message: text(),
                causes: vec![text()],
                undo: nothing(),
            },
            Record::Reverted {
                intent: 2,
                what: text(),
            },
            Record::Left {
                intent: 3,
                why: text(),
            },
            Record::RebootAwaited {
                boot_id: None,
                why: text(),
                automatic: true,
            },
        ];
        let read = kept(&[secret], records.clone()).unwrap();
        let read = serde_json::to_string(&read).unwrap();
        let wanted = serde_json::to_string(&records).unwrap();
        assert_eq!(read, wanted.replace(secret, "***"));
    }

    #[test]
    fn a_secret_in_a_name_is_refused_before_the_change() {
        let file = |path: &str, before: Option<&str>| Undo::RestoreFiles {
            files: vec![FileBefore {
                path: path.into(),
                before: before.map(|target| crate::change::Saved {
                    sha256: digest("0"),
                    mode: 0o777,
                    uid: 0,
                    gid: 0,
                    link: Some(target.into()),
                }),
                after: FileAfter::Unknown,
            }],
            created_folders: Vec::new(),
            daemon: None,
        };
        let leave = |word: &str, joined: &str| {
            Undo::LeaveCluster(LeaveCluster {
                way: Leave::Command {
                    command: vec!["/usr/local/sbin/leave".to_owned(), word.to_owned()],
                    environment_file: None,
                    joined_file: joined.into(),
                    timeout_seconds: 5,
                },
                node: "gpu-1".parse().expect("a name"),
                access: None,
                machine: None,
                cluster: None,
            })
        };
        for record in [
            intent(write("/etc/docker/a", ""), nothing()),
            intent(install("docker.io"), nothing()),
            intent(
                Change::SetSysctls {
                    values: [("net.docker".to_owned(), "1".to_owned())].into(),
                },
                nothing(),
            ),
            intent(
                Change::EnableUnit {
                    unit: "docker.service".to_owned(),
                    start: true,
                },
                nothing(),
            ),
            intent(Change::RepairPackages, leave("docker", "/etc/joined")),
            intent(Change::RepairPackages, leave("now", "/etc/docker")),
            intent(Change::RepairPackages, file("/etc/docker", None)),
            intent(Change::RepairPackages, file("/etc/a", Some("/docker"))),
            intent(
                Change::RepairPackages,
                Undo::Unhold(Unhold {
                    held: vec!["docker.io".to_owned()],
                    entries: None,
                    record: None,
                }),
            ),
            intent(
                Change::RepairPackages,
                Undo::Several {
                    undos: vec![Undo::Impossible {
                        what: "docker".to_owned(),
                        why: String::new(),
                    }],
                },
            ),
        ] {
            let error = kept(&["docker"], vec![record.clone()]).unwrap_err();
            assert!(error.to_string().contains("docker"), "{error}");
            assert_eq!(
                (error.exit(), error.reason()),
                (Exit::Config, "secret-in-name")
            );
            assert!(error.hint().is_some());
            assert_eq!(kept(&["podman"], vec![record.clone()]).unwrap(), [record]);
        }
    }
}

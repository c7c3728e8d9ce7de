//! Secrets and journal records: free text is stored without the secrets of the run. Everything that
//! a later run reads back (names, paths, digests, ids, undos) is stored unchanged.

use super::{JournalError, Record};
use crate::{
    change::{Afterwards, Change, FileAfter, FileBefore, Join, Leave, Probe, Undo},
    model::{cluster::JoinMethod, packages::Repository, secret::Secrets},
};

impl Record {
    /// Refuses the record of something that is about to happen, if a secret occurs in one of its
    /// names: in clear it would leak the secret, without the secret it could not be undone. The
    /// record of something that has happened is never refused, so that its undo is not lost.
    ///
    /// # Errors
    /// [`JournalError::SecretInName`].
    pub(super) fn refuse_secret_names(&self, secrets: &Secrets) -> Result<(), JournalError> {
        let names = match self {
            Self::RunStarted { request, .. } => request
                .profile
                .iter()
                .map(String::as_str)
                .chain(request.config.iter().map(|path| path.as_str()))
                .collect(),
            Self::Intent { change, undo, .. } => {
                let mut names = names_of_change(change);
                names_of_undo(undo, &mut names);
                names
            }
            Self::GaveUp { .. }
            | Self::Proven { .. }
            | Self::GoingBack { .. }
            | Self::WentBack { .. }
            | Self::Applied { .. }
            | Self::Failed { .. }
            | Self::Interrupted { .. }
            | Self::Reverted { .. }
            | Self::Reduced { .. }
            | Self::Left { .. }
            | Self::RebootAwaited { .. }
            | Self::RunFinished { .. } => Vec::new(),
        };
        match names.into_iter().find(|name| secrets.are_in(name)) {
            Some(name) => Err(JournalError::SecretInName {
                name: name.to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// The record without the secrets in its free text.
    pub(super) fn without_secrets(mut self, secrets: &Secrets) -> Self {
        let texts: Vec<&mut String> = match &mut self {
            // The settings that are needed after a reboot are in the credentials, with their secrets.
            Self::RunStarted { request, .. } => request.set.iter_mut().collect(),
            Self::Intent { change, .. } => texts_of_change(change),
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
        self
    }
}

fn strs(texts: &[String]) -> impl Iterator<Item = &str> {
    texts.iter().map(String::as_str)
}

/// What a change names on the machine.
fn names_of_change(change: &Change) -> Vec<&str> {
    match change {
        Change::WriteFile { path, .. } => vec![path.as_str()],
        Change::AddRepository {
            repository:
                Repository {
                    name,
                    url,
                    suites,
                    components,
                    architectures: _,
                    key_url,
                    fingerprints: _,
                    keyring,
                    key_files,
                    priority: _,
                    packages: _,
                    signed: _,
                },
        } => [name.as_str(), url.as_str()]
            .into_iter()
            .chain(strs(suites))
            .chain(strs(components))
            .chain(key_url.as_deref())
            .chain(keyring.as_deref().map(camino::Utf8Path::as_str))
            .chain(key_files.iter().map(|path| path.as_str()))
            .collect(),
        Change::InstallPackages {
            packages, removing, ..
        } => packages
            .iter()
            .map(|package| package.name.as_str())
            .chain(strs(removing))
            .collect(),
        Change::EnableStream { module, stream } => vec![module, stream],
        Change::HoldPackages { patterns: names } | Change::RebuildInitramfs { kernels: names } => {
            strs(names).collect()
        }
        Change::EnableUnit { unit: name, .. }
        | Change::RestartUnit { unit: name }
        | Change::LoadModule { module: name }
        | Change::BuildModule { module: name, .. } => vec![name],
        Change::ConfigureRuntime { settings } => {
            let files = settings.files.iter();
            let names = files.flat_map(|file| {
                let keys = file.settings.iter().flat_map(|setting| strs(&setting.key));
                keys.chain([file.path.as_str()])
            });
            names
                .chain([settings.unit.as_str(), &settings.runtime])
                .collect()
        }
        Change::RunTool { writes, .. } => writes.iter().map(|path| path.as_str()).collect(),
        Change::PullImage { image, .. } => vec![image],
        Change::RunProbe { record, .. } => vec![record.as_str()],
        Change::SetSysctls { values } => values.keys().map(String::as_str).collect(),
        Change::TurnOffSwap { areas } => strs(areas).collect(),
        Change::JoinCluster { join } => {
            let files = join.method.secret_files();
            (files.into_iter().map(|(path, _)| path))
                .chain(&join.access)
                .map(|path| path.as_str())
                .chain([&*join.node])
                .collect()
        }
        Change::AdmitNode { admission } => vec![&*admission.node],
        Change::RefreshRepositories | Change::RepairPackages | Change::Reboot { .. } => Vec::new(),
    }
}

/// What of a change is text that no later run needs.
fn texts_of_change(change: &mut Change) -> Vec<&mut String> {
    match change {
        Change::WriteFile { content, .. } => vec![content],
        Change::RunTool {
            purpose, command, ..
        } => std::iter::once(purpose).chain(command).collect(),
        Change::RunProbe {
            probe:
                Probe::ContainerSeesGpus {
                    image,
                    command,
                    expect,
                    ..
                },
            inputs,
            ..
        } => (std::iter::once(inputs).chain(image).chain(expect))
            .chain(command)
            .collect(),
        Change::RunProbe {
            probe: Probe::HostComputes { .. },
            inputs,
            ..
        } => vec![inputs],
        Change::Reboot { why } => vec![why],
        Change::JoinCluster {
            join:
                Join {
                    method:
                        JoinMethod::Command {
                            command,
                            leave_command,
                            ..
                        },
                    ..
                },
        } => command.iter_mut().chain(leave_command).collect(),
        Change::AddRepository { .. }
        | Change::RefreshRepositories
        | Change::EnableStream { .. }
        | Change::InstallPackages { .. }
        | Change::RepairPackages
        | Change::HoldPackages { .. }
        | Change::EnableUnit { .. }
        | Change::RestartUnit { .. }
        | Change::ConfigureRuntime { .. }
        | Change::LoadModule { .. }
        | Change::RebuildInitramfs { .. }
        | Change::PullImage { .. }
        | Change::SetSysctls { .. }
        | Change::TurnOffSwap { .. }
        | Change::JoinCluster { .. }
        | Change::AdmitNode { .. }
        | Change::BuildModule { .. } => Vec::new(),
    }
}

/// Every text of an undo but digests and the name of a transaction, which this program makes. What
/// a transaction did is not known when its intent is recorded.
fn names_of_undo<'u>(undo: &'u Undo, names: &mut Vec<&'u str>) {
    match undo {
        Undo::Nothing { why } => names.push(why),
        Undo::Impossible { what, why } => names.extend([what.as_str(), why]),
        Undo::RestoreFiles {
            files,
            created_folders,
            daemon,
        } => {
            files.iter().for_each(|file| names_of_file(file, names));
            names.extend(created_folders.iter().map(|path| path.as_str()));
            let named = daemon.iter().flat_map(|one| [&one.unit, &one.runtime]);
            names.extend(named.map(String::as_str));
        }
        Undo::Packages { .. } => {}
        Undo::RestoreStream {
            module,
            stream,
            before,
            ..
        } => names.extend(
            [module, stream]
                .into_iter()
                .chain(before)
                .map(String::as_str),
        ),
        Undo::Unhold {
            before,
            held,
            entries,
            record: _,
        } => {
            let known = held.iter().chain(entries);
            names.extend(strs(before).chain(known.flat_map(|names| strs(names))));
        }
        Undo::Afterwards { then } => names.extend(then.iter().map(name_afterwards)),
        Undo::RestoreUnit { unit: name, .. }
        | Undo::UnloadModule { module: name }
        | Undo::RemoveImage { image: name, .. } => names.push(name),
        Undo::RemoveModuleBuild {
            module,
            version,
            kernel,
        } => names.extend([module.as_str(), version, kernel]),
        Undo::LeaveCluster {
            way,
            node,
            access,
            machine: _,
            cluster: _,
        } => {
            // A later run starts the command as it is.
            if let Leave::Command {
                command,
                environment_file,
                joined_file,
                timeout_seconds: _,
            } = way
            {
                names.extend(strs(command));
                let files = environment_file.iter().chain([joined_file]);
                names.extend(files.map(|path| path.as_str()));
            }
            names.push(node);
            names.extend(access.iter().map(|path| path.as_str()));
        }
        Undo::RestoreLabels {
            node,
            machine: _,
            labels,
            ours,
        } => {
            names.push(node);
            names.extend(ours.values().map(String::as_str));
            let values = labels
                .iter()
                .flat_map(|(key, value)| [Some(key), value.as_ref()]);
            names.extend(values.flatten().map(String::as_str));
        }
        Undo::RestoreSysctls { values, ours } => {
            names.extend(
                (values.iter())
                    .chain(ours)
                    .flat_map(|(name, value)| [name.as_str(), value]),
            );
        }
        Undo::TurnOnSwap { areas } => names.extend(strs(areas)),
        Undo::Several { undos } => undos.iter().for_each(|undo| names_of_undo(undo, names)),
    }
}

fn names_of_file<'u>(file: &'u FileBefore, names: &mut Vec<&'u str>) {
    names.push(file.path.as_str());
    let link = file.before.as_ref().and_then(|saved| saved.link.as_ref());
    names.extend(link.map(|target| target.as_str()));
    match &file.after {
        FileAfter::Link { target } => names.push(target.as_str()),
        FileAfter::Edited { edits, .. } => {
            names.extend(edits.iter().flat_map(|edit| strs(&edit.key)));
        }
        FileAfter::Unknown | FileAfter::Any | FileAfter::Absent | FileAfter::File { .. } => {}
    }
}

fn name_afterwards(then: &Afterwards) -> &str {
    match then {
        Afterwards::RestartUnit { unit: name } | Afterwards::RebuildInitramfs { kernel: name } => {
            name
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        change::packages::Effects,
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
        let lines = Journal::read(&host)?.lines;
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
        let leave = |word: &str, joined: &str| Undo::LeaveCluster {
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
        };
        for record in [
            intent(write("/etc/docker/a", ""), nothing()),
            intent(install("docker.io"), nothing()),
            intent(Change::RepairPackages, leave("docker", "/etc/joined")),
            intent(Change::RepairPackages, leave("now", "/etc/docker")),
            intent(Change::RepairPackages, file("/etc/docker", None)),
            intent(Change::RepairPackages, file("/etc/a", Some("/docker"))),
            intent(
                Change::RepairPackages,
                Undo::Unhold {
                    before: vec!["docker.io".to_owned()],
                    held: None,
                    entries: None,
                    record: None,
                },
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

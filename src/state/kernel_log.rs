//! NVIDIA driver messages in the kernel log since boot.

use camino::Utf8Path;

use super::State;
use crate::{
    error::one_line,
    host::{ExecError, Query},
    tools::kernel_log::{self, Message, last_boot, read, records, records_of_journal},
};

/// The messages of the NVIDIA driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelLog {
    /// The log was read.
    Known {
        /// The messages, oldest first.
        messages: Vec<Message>,
        /// The source of the messages.
        source: String,
        /// The log was too large, and its middle was skipped.
        cut: bool,
    },
    /// The log cannot be read.
    Unreadable {
        /// The reason.
        why: String,
    },
    /// The log is not available: a tree below `--root` without a log, or a container.
    NotQueried {
        /// The reason.
        why: String,
    },
}

impl State {
    /// The messages of the NVIDIA driver in the kernel log of this boot.
    pub async fn kernel_log(&self) -> &KernelLog {
        let read = || self.read_kernel_log();
        self.memo.kernel_log.get_or_init(read).await
    }

    async fn read_kernel_log(&self) -> KernelLog {
        if let Some(around) = self.facts.container() {
            return KernelLog::NotQueried {
                why: format!("the kernel log is not visible in a container ({around})"),
            };
        }
        let mut reasons = Vec::new();
        // Read files only if commands must not be executed, because users can forge kernel messages in syslog files.
        let journal: fn(&str) -> Vec<String> = records_of_journal;
        let trusted = self.has_kernel_records();
        let ring = trusted
            .is_ok()
            .then(|| (kernel_log::ring(), records as fn(&str) -> Vec<String>));
        for (query, parse) in std::iter::once((kernel_log::journal(), journal)).chain(ring) {
            match self.queried(&query, parse).await {
                Ok(log) => return log,
                Err(ExecError::NotQueried { why, .. }) => return self.logged_in_files(why),
                // The `journalctl` search expression is several pages long, so leave it out.
                Err(error) => {
                    let cmd = query.cmd();
                    reasons.push(one_line(&error).replace(&cmd.line(), &cmd.program));
                }
            }
        }
        reasons.extend(trusted.err());
        KernelLog::Unreadable {
            why: reasons.join("; "),
        }
    }

    /// Returns an error with the reason if `dmesg` must not be used. Without `/dev/kmsg`, `dmesg` reads the log with syslog(2),
    /// where the kernel puts a timestamp before each line of a message. A user who can write a newline into a message could
    /// then forge another message.
    fn has_kernel_records(&self) -> Result<(), String> {
        let path = Utf8Path::new(kernel_log::RECORDS);
        match self.host.files.stat(path) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(format!(
                "`{path}` is missing, so `dmesg` cannot separate messages"
            )),
            Err(error) => Err(format!("failed to {}", one_line(&error))),
        }
    }

    /// Returns the log that a program prints. Every kernel logs its version at boot, so an empty result means that the log is
    /// hidden from this user or has lost its beginning.
    async fn queried(
        &self,
        query: &Query,
        parse: fn(&str) -> Vec<String>,
    ) -> Result<KernelLog, ExecError> {
        let output = self.host.reader().query(query).await?;
        let output = output.success(query.cmd())?;
        let records = parse(&output.stdout);
        if records.is_empty() {
            return Err(ExecError::Unexpected {
                command: query.cmd().line(),
                why: "no kernel messages".to_owned(),
            });
        }
        Ok(KernelLog::Known {
            messages: read(records.iter().map(String::as_str)),
            source: format!("`{}`", query.cmd().program),
            cut: output.is_cut(),
        })
    }

    fn logged_in_files(&self, why: String) -> KernelLog {
        for path in kernel_log::FILES {
            match self.host.files.read(Utf8Path::new(path)) {
                Ok(Some(bytes)) => {
                    let records = records(&String::from_utf8_lossy(&bytes));
                    return KernelLog::Known {
                        messages: read(last_boot(&records).iter().map(String::as_str)),
                        source: format!("`{path}`"),
                        cut: false,
                    };
                }
                Ok(None) => {}
                Err(error) => {
                    return KernelLog::Unreadable {
                        why: format!("failed to {}", one_line(&error)),
                    };
                }
            }
        }
        KernelLog::NotQueried {
            why: format!("no log file on disk has kernel messages, and {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        host::fake,
        steps::fixtures::{facts, state},
    };

    #[tokio::test]
    async fn log_sources_are_journal_then_dmesg_then_files() {
        let (host, fakes) = fake::host();
        let get = async || state(&host, facts()).kernel_log().await.clone();
        assert!(matches!(get().await, KernelLog::Unreadable { .. }));
        fakes.exec.on("dmesg", |_, _| {
            fake::ok("[    0.000000] Linux version 6.1\n")
        });
        fakes.files.take("/dev/kmsg");
        let why = |log| match log {
            KernelLog::Unreadable { why } => why,
            other => panic!("{other:?}"),
        };
        assert!(why(get().await).contains("`/dev/kmsg` is missing"));
        fakes.files.put_device("/dev/kmsg", 1, 11);
        let known = |messages: Vec<Message>, source: &str| KernelLog::Known {
            messages,
            source: source.to_owned(),
            cut: false,
        };
        assert_eq!(get().await, known(vec![], "`dmesg`"));
        // An unprivileged user gets an empty log without an error.
        fakes.exec.on("journalctl", |_, _| fake::ok(""));
        assert_eq!(get().await, known(vec![], "`dmesg`"));
        fakes.exec.on("journalctl", |_, _| {
            fake::ok(concat!(
                "{\"MESSAGE\":\"Linux version 6.1\"}\n",
                "{\"MESSAGE\":\"NVRM: API mismatch: the client has the version 535.247.01, but\"}\n"
            ))
        });
        assert_eq!(
            get().await,
            known(
                vec![Message::OtherVersion {
                    libraries: Some("535.247.01".to_owned())
                }],
                "`journalctl`"
            )
        );
        fakes.exec.on_result("journalctl", |cmd, _| {
            Err(ExecError::NotQueried {
                command: cmd.line(),
                why: "nothing is executed".to_owned(),
            })
        });
        assert!(matches!(get().await, KernelLog::NotQueried { .. }));
        let log =
            "[  1.0] NVRM: API mismatch: the client x\n[  0.0] Linux version 6.1\n[  1.0] fine\n";
        fakes.files.put("/var/log/kern.log", log);
        assert_eq!(get().await, known(vec![], "`/var/log/kern.log`"));
    }

    #[tokio::test]
    async fn truncated_log_is_marked_as_cut() {
        let (host, fakes) = fake::host();
        fakes.exec.on("journalctl", |_, _| {
            fake::ok("{\"MESSAGE\":\"Linux version 6.1\"}\n{\"MES\n[… 7 bytes left out …]\n\"}\n")
        });
        let log = state(&host, facts()).kernel_log().await.clone();
        assert!(matches!(log, KernelLog::Known { cut: true, .. }), "{log:?}");
    }

    #[tokio::test]
    async fn host_log_is_not_read_in_a_container() {
        let (host, fakes) = fake::host();
        let mut inside = facts();
        inside.virtualization = Some("docker".to_owned());
        let state = state(&host, inside);
        assert!(matches!(
            state.kernel_log().await,
            KernelLog::NotQueried { .. }
        ));
        assert!(fakes.exec.log().is_empty());
    }
}

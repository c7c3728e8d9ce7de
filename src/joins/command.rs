//! Join and leave commands of the administrator. Their secrets are passed as environment variables, from a file that only root
//! may read.

use std::time::Duration;

use camino::Utf8Path;

use async_trait::async_trait;

use super::{
    Found, Join, JoinMethod, Joining, Lack, Leave, Leaving, MethodRow, MethodTool, NodeRule,
    bad_secret, is_early, kubelets_of,
};
use crate::{
    error::one_line,
    host::{Cmd, ExecError, trusted::refuse_foreign},
    model::{environment, secret::Secret},
    runtimes::choice::Cluster,
    tools::kubernetes::membership::Membership,
    work::{ChangeError, Hands, Reverted, Sink},
};

/// Marker file in the state directory that exists from the start of the leave command until it succeeds. An interrupted command
/// may have removed the file that indicates the membership, but not the rest.
const LEAVING: &str = "leaving";

pub(super) const ROW: MethodRow = MethodRow {
    keys: &[
        "command",
        "environment-file",
        "joined-file",
        "leave-command",
    ],
    runtimes: Cluster::OfMachine,
    node: NodeRule {
        // A custom command may register the node in any way.
        has_default_taint: false,
        ..NodeRule::OURS
    },
    has_packages: false,
    read: |given, wrong| {
        let command = wrong.needed(
            "command",
            given.command,
            "set it to a list of program and arguments",
        );
        for (key, command, example) in [
            ("command", command, "join"),
            ("leave-command", given.leave_command, "leave"),
        ] {
            let program = command.map(|command| command.first().map(String::as_str));
            if program.is_some_and(|program| !program.is_some_and(|path| path.starts_with('/'))) {
                wrong.add::<()>(
                    key,
                    "must start with an absolute path",
                    &format!("set it to a list of program and arguments, such as `[\"/usr/local/sbin/{example}\"]`"),
                );
            }
        }
        let joined = wrong.needed(
            "joined-file",
            given.joined_file,
            "set it to a file that exists after the machine has joined, such as the kubeconfig of the kubelet",
        );
        Some(JoinMethod::Command {
            command: command?.to_vec(),
            environment_file: given.environment_file.map(Utf8Path::to_owned),
            joined_file: joined?.to_owned(),
            leave_command: given.leave_command.unwrap_or_default().to_vec(),
        })
    },
};

/// Joins with a command.
pub(super) struct ByCommand<'a> {
    pub command: &'a [String],
    pub environment_file: Option<&'a Utf8Path>,
    pub joined_file: &'a Utf8Path,
    pub leave_command: &'a [String],
}

#[async_trait]
impl Joining for ByCommand<'_> {
    fn tool(&self) -> MethodTool<'_> {
        MethodTool {
            program: self.command.first().map(String::as_str),
            ..MethodTool::default()
        }
    }

    fn missing(&self, found: &Found) -> Option<Lack> {
        let program = self.command.first().filter(|_| !found.has_program)?;
        Some(Lack {
            why: format!("`{program}` does not exist"),
            hint: "install the program there, or correct `cluster.command`",
        })
    }

    fn joined_file(&self) -> Option<&Utf8Path> {
        Some(self.joined_file)
    }

    /// The command may run `nodeadm`, as on EKS hybrid nodes.
    fn kubelets_of(&self, kubeconfig: &Utf8Path) -> &'static [&'static str] {
        kubelets_of(kubeconfig)
    }

    fn leaving(&self, _: &Hands, join: &Join) -> Result<Leave, ChangeError> {
        Ok(match self.leave_command.is_empty() {
            true => Leave::Never {
                method: join.method.name().to_owned(),
            },
            false => Leave::Command {
                command: self.leave_command.to_vec(),
                environment_file: self.environment_file.map(Utf8Path::to_owned),
                joined_file: self.joined_file.to_owned(),
                timeout_seconds: join.timeout_seconds,
            },
        })
    }

    async fn join(&self, hands: &Hands, join: &Join, sink: &dyn Sink) -> Result<(), ChangeError> {
        let files = (self.environment_file, self.joined_file);
        (hands.join_by_command(join, self.command, files, sink)).await
    }
}

/// Leaves with a command.
pub(super) struct LeaveByCommand<'a> {
    pub command: &'a [String],
    pub environment_file: Option<&'a Utf8Path>,
    pub joined_file: &'a Utf8Path,
    pub timeout: Duration,
}

#[async_trait]
impl Leaving for LeaveByCommand<'_> {
    /// Always `true`, because the effects of the join command are unknown.
    fn has_begun(&self, _: &Hands) -> Result<bool, ChangeError> {
        Ok(true)
    }

    fn is_early(&self, _: &Hands, found: Option<&Membership>) -> Result<bool, ChangeError> {
        Ok(found.is_some_and(|found| is_early(&found.kubeconfig)))
    }

    /// The kubelet may have stopped in the meantime, but the changes of the join command still exist.
    fn counts_without_kubelet(&self) -> bool {
        true
    }

    fn stays(
        &self,
        hands: &Hands,
        is_member: bool,
        clone: Option<&str>,
    ) -> Result<Option<String>, ChangeError> {
        if let Some(why) = clone {
            return Ok(Some(why.to_owned()));
        }
        if hands.has_left_by_command(self.joined_file, is_member)? {
            return Ok(None);
        }
        let runs = hands.with_environment(self.command, self.environment_file, self.timeout);
        Ok(match runs {
            Ok(cmd) if !hands.host.files.exists(Utf8Path::new(&cmd.program))? => Some(format!(
                "`{}` from `cluster.leave-command` does not exist",
                cmd.program
            )),
            Ok(_) => None,
            Err(error) => Some(one_line(&error)),
        })
    }

    async fn leave(
        &self,
        hands: &Hands,
        is_member: bool,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let files = (self.environment_file, self.joined_file);
        (hands.leave_by_command((self.command, self.timeout), files, is_member, sink)).await
    }
}

impl Hands {
    pub(crate) async fn join_by_command(
        &self,
        join: &Join,
        command: &[String],
        (environment_file, joined_file): (Option<&Utf8Path>, &Utf8Path),
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let cmd = self.with_environment(command, environment_file, join.timeout())?;
        let ran = self.exec(&cmd, sink).await;
        (ran.and_then(|output| output.success(&cmd))).map_err(command_failed)?;
        if self.host.files.exists(joined_file)? {
            return Ok(());
        }
        let words = format!("the command succeeded, but `{joined_file}` does not exist");
        Err(join.timed_out(&cmd.program, Some(words)))
    }

    /// Runs the leave command. Steps that it does not complete are left to the administrator.
    pub(crate) async fn leave_by_command(
        &self,
        (command, timeout): (&[String], Duration),
        (environment_file, joined_file): (Option<&Utf8Path>, &Utf8Path),
        is_member: bool,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let files = &self.host.files;
        let mark = self.state.join(LEAVING);
        if self.has_left_by_command(joined_file, is_member)? {
            return Ok(Reverted::nothing(format!(
                "`{joined_file}` no longer exists"
            )));
        }
        let words = command.join(" ");
        let left = |why: String| {
            Ok(Reverted::left(
                format!("the changes made by `cluster.command` (reverted by `{words}`)"),
                why,
            ))
        };
        let cmd = match self.with_environment(command, environment_file, timeout) {
            Ok(cmd) => cmd,
            Err(error) => return left(one_line(&error)),
        };
        files.write(&mark, b"", 0o600)?;
        let ran = self.exec(&cmd, sink).await;
        if let Err(error) = ran.and_then(|output| output.success(&cmd)) {
            let by_hand = match files.exists(joined_file)? {
                true => String::new(),
                false => format!(
                    "; `{joined_file}` was removed, but possibly not the rest: when it is, run `rm \
                     {mark}`, or the next uninstall runs the command again"
                ),
            };
            return left(one_line(&error) + &by_hand);
        }
        if files.exists(joined_file)? {
            return left(format!(
                "the command succeeded, but `{joined_file}` still exists"
            ));
        }
        files.remove(&mark)?;
        Ok(Reverted::done(format!("ran `{words}`")))
    }

    /// Returns `true` if the leave command has nothing to revert.
    pub(crate) fn has_left_by_command(
        &self,
        joined_file: &Utf8Path,
        is_member: bool,
    ) -> Result<bool, ChangeError> {
        let files = &self.host.files;
        let begun = files.exists(&self.state.join(LEAVING))?;
        Ok(!is_member && !begun && !files.exists(joined_file)?)
    }

    /// Creates the command with the current content of its environment file.
    pub(crate) fn with_environment(
        &self,
        command: &[String],
        environment_file: Option<&Utf8Path>,
        timeout: Duration,
    ) -> Result<Cmd, ChangeError> {
        let Some((program, args)) = command.split_first() else {
            return Err(ChangeError::unreadable(
                "run a command for the cluster",
                "the command is empty",
            ));
        };
        refuse_foreign(&*self.host.files, Utf8Path::new(program))?;
        let mut cmd = Cmd::new(program, args.iter().cloned()).deadline(timeout);
        if let Some(path) = environment_file {
            let text = self.secret(path)?;
            let variables =
                environment::parse(text.expose()).map_err(|why| bad_secret(path, &why))?;
            for (name, value) in variables {
                let value = Secret::new(value);
                self.secrets.learn(&value);
                cmd = cmd.secret_env(&name, &value);
            }
        }
        Ok(cmd)
    }
}

/// The error of a command that did not join the machine.
fn command_failed(error: ExecError) -> ChangeError {
    let hint = match error {
        ExecError::Deadline { .. } | ExecError::Silent { .. } => {
            "check what your command waits for, or set a longer `cluster.timeout`, then run the \
             command again. Its changes until then are kept"
        }
        _ => {
            "fix the error that your command reports, then run the command again. Its changes \
             before the error are kept and not reverted by gpu-bootstrap"
        }
    };
    ChangeError::new("join-command", "join the cluster with your command")
        .advice(hint)
        .caused_by(error)
}

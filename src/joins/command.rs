//! Join and leave commands of the administrator. Their secrets are passed as environment variables, from a file that only root
//! may read.

use std::time::Duration;

use camino::Utf8Path;

use super::{Join, bad_secret};
use crate::work::{Hands, Problem, Reverted, Sink};
use crate::{
    error::one_line,
    host::{Cmd, ExecError, trusted::refuse_foreign},
    model::{environment, secret::Secret},
};

/// Exists in the state directory from the start of the leave command until it succeeds. An interrupted command may have removed
/// the file that indicates the membership, but not the rest.
const LEAVING: &str = "leaving";

impl Hands {
    pub(crate) async fn join_by_command(
        &self,
        join: &Join,
        command: &[String],
        (environment_file, joined_file): (Option<&Utf8Path>, &Utf8Path),
        sink: &dyn Sink,
    ) -> Result<(), Problem> {
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
    ) -> Result<Reverted, Problem> {
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
    ) -> Result<bool, Problem> {
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
    ) -> Result<Cmd, Problem> {
        let Some((program, args)) = command.split_first() else {
            return Err(Problem::unreadable(
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
fn command_failed(error: ExecError) -> Problem {
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
    Problem::new("join-command", "join the cluster with your command")
        .advice(hint)
        .caused_by(error)
}

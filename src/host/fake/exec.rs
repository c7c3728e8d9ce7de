//! Fake programs: closures that act on the fake files.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use super::files::Mutation;
use super::{FakeFiles, locked};
use crate::host::exec::{OnLine, Status};
use crate::host::{Cmd, Exec, ExecError, Output};

type Handler = Arc<Mutex<dyn FnMut(&Cmd, &FakeFiles) -> Result<Output, ExecError> + Send>>;
type Changes = Arc<dyn Fn(&Cmd) -> bool + Send + Sync>;

/// A registry of programs. Programs that are not registered are not installed.
#[derive(Clone)]
pub struct FakeExec {
    files: FakeFiles,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    programs: BTreeMap<String, Handler>,
    changes: Option<Changes>,
    log: Vec<Cmd>,
}

/// Returns the output of a program that exited with 0 and printed this.
pub fn ok(stdout: impl Into<String>) -> Output {
    Output {
        status: Status::Exited(0),
        stdout: stdout.into(),
        stderr: String::new(),
    }
}

/// Returns the output of a program that exited with this status and error output.
pub fn failed(status: i32, stderr: impl Into<String>) -> Output {
    Output {
        status: Status::Exited(status),
        stdout: String::new(),
        stderr: stderr.into(),
    }
}

impl FakeExec {
    /// Creates an empty registry. Handlers receive these files.
    pub fn new(files: &FakeFiles) -> Self {
        Self {
            files: files.clone(),
            state: Arc::default(),
        }
    }

    /// Installs a program by name or absolute path. A command with an absolute path falls back to
    /// the name.
    pub fn on(
        &self,
        program: &str,
        mut handler: impl FnMut(&Cmd, &FakeFiles) -> Output + Send + 'static,
    ) {
        self.on_result(program, move |cmd, files| Ok(handler(cmd, files)));
    }

    /// Like [`FakeExec::on`], for a program that may hang or fail to start.
    pub fn on_result(
        &self,
        program: &str,
        handler: impl FnMut(&Cmd, &FakeFiles) -> Result<Output, ExecError> + Send + 'static,
    ) {
        locked(&self.state)
            .programs
            .insert(program.to_owned(), Arc::new(Mutex::new(handler)));
    }

    /// Removes a program.
    pub fn forget(&self, program: &str) {
        locked(&self.state).programs.remove(program);
    }

    /// Defines the commands that change the machine. Each one counts as a mutation of the files, so
    /// that a test can kill the process when it starts a command.
    pub fn changes_when(&self, changes: impl Fn(&Cmd) -> bool + Send + Sync + 'static) {
        locked(&self.state).changes = Some(Arc::new(changes));
    }

    /// All commands in order, including those whose program is not installed.
    pub fn log(&self) -> Vec<Cmd> {
        locked(&self.state).log.clone()
    }

    /// The command lines of [`FakeExec::log`].
    pub fn lines(&self) -> Vec<String> {
        locked(&self.state).log.iter().map(Cmd::line).collect()
    }

    /// Clears the log.
    pub fn clear_log(&self) {
        locked(&self.state).log.clear();
    }

    fn find(&self, cmd: &Cmd) -> (Option<Handler>, Option<Changes>) {
        let mut state = locked(&self.state);
        state.log.push(cmd.clone());
        let base = cmd.program.rsplit('/').next().unwrap_or(&cmd.program);
        let handler = state
            .programs
            .get(&cmd.program)
            .or_else(|| state.programs.get(base))
            .cloned();
        (handler, state.changes.clone())
    }
}

#[async_trait]
impl Exec for FakeExec {
    async fn run(&self, cmd: &Cmd, on_line: &mut OnLine<'_>) -> Result<Output, ExecError> {
        let (handler, changes) = self.find(cmd);
        let Some(handler) = handler else {
            return Err(ExecError::NotFound {
                program: cmd.program.clone(),
            });
        };
        let changes = changes.is_some_and(|changes| changes(cmd));
        let refused = if changes {
            self.files.before(&Mutation::Run(cmd.line()))
        } else {
            self.files.alive()
        };
        refused.map_err(|error| ExecError::Spawn {
            command: cmd.line(),
            why: error.to_string(),
        })?;
        let output = (locked(&handler))(cmd, &self.files);
        if changes {
            self.files.after_command();
        }
        let output = output?;
        output.hand_out(on_line);
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::ReadFiles;

    #[tokio::test]
    async fn handlers_change_the_same_files() {
        let files = FakeFiles::new();
        let exec = FakeExec::new(&files);
        let mut calls = 0;
        exec.on("modprobe", move |cmd, files| {
            calls += 1;
            files.put(&format!("/sys/module/{}/refcnt", cmd.args[0]), "0\n");
            ok(format!("call {calls}\n"))
        });
        let cmd = Cmd::new("/usr/sbin/modprobe", ["nvidia"]);
        let mut lines = Vec::new();
        let output = exec
            .run(&cmd, &mut |_, line| lines.push(line.to_owned()))
            .await
            .unwrap();
        assert!(output.ok());
        assert_eq!(lines, ["call 1"]);
        assert!(files.exists("/sys/module/nvidia".into()).unwrap());
        assert_eq!(exec.lines(), ["/usr/sbin/modprobe nvidia"]);
    }

    #[tokio::test]
    async fn unregistered_program_is_not_found() {
        let exec = FakeExec::new(&FakeFiles::new());
        let run = exec
            .run(&Cmd::new("lspci", ["-Dnmm"]), &mut |_, _| {})
            .await;
        assert_eq!(
            run,
            Err(ExecError::NotFound {
                program: "lspci".to_owned()
            })
        );
    }

    #[tokio::test]
    async fn changing_command_is_a_mutation() {
        let files = FakeFiles::new();
        let exec = FakeExec::new(&files);
        exec.on("apt-get", |_, files| {
            files.put("/installed", "");
            ok("")
        });
        exec.on("true", |_, _| ok(""));
        exec.changes_when(|cmd| cmd.program == "apt-get");
        files.kill_at(1);
        let run = exec
            .run(&Cmd::new("apt-get", ["install"]), &mut |_, _| {})
            .await;
        assert!(matches!(run, Err(ExecError::Spawn { .. })));
        // A dead process cannot run commands.
        let none: [&str; 0] = [];
        assert!(
            exec.run(&Cmd::new("true", none), &mut |_, _| {})
                .await
                .is_err()
        );
        files.revive();
        assert!(!files.exists("/installed".into()).unwrap());
    }
}

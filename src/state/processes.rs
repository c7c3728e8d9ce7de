//! Decides which command lines are trusted. Every user, and every process of a pod, can choose the names and arguments of its
//! processes, and gpu-bootstrap acts on them as root.

use super::{State, StateError};
use crate::host::{
    FilesError,
    system::{Process, is_in_own_namespaces, program_of},
};

impl State {
    /// The host processes that run one of these programs, with the program name. Each process must belong to root, run outside
    /// containers, and have an executable of this name. Its own name and arguments are not sufficient, because a user can start
    /// `sudo`, which runs as root before it prompts for a password, with any first argument.
    ///
    /// # Errors
    /// If processes cannot be listed, or if one cannot be inspected for a reason other than missing permissions.
    pub(super) fn processes_of(
        &self,
        programs: &[&str],
    ) -> Result<Vec<(String, Process)>, StateError> {
        let mut found = Vec::new();
        for process in self.host.system.processes()? {
            let is_candidate =
                process.uid == Some(0) && programs.iter().any(|program| process.is_called(program));
            if !is_candidate {
                continue;
            }
            let program = self.own_program(process.pid)?;
            if let Some(program) = program.filter(|program| programs.contains(&program.as_str())) {
                found.push((program, process));
            }
        }
        Ok(found)
    }

    /// The file name of a process's executable. `None` if the process is in a container or has exited, or if only root can
    /// inspect it.
    fn own_program(&self, pid: u32) -> Result<Option<String>, FilesError> {
        let files = &*self.host.files;
        if !is_in_own_namespaces(files, pid)? {
            return Ok(None);
        }
        program_of(files, pid)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use crate::{
        host::{
            fake::{self, FakeFiles},
            system::DELETED,
        },
        steps::fixtures::{facts, state_below_root},
    };

    /// A kind of test process.
    #[derive(Debug, Clone, Copy)]
    pub(in crate::state) enum Which {
        /// A host process of root.
        Own,
        /// A process of a user.
        OfUser(u32),
        /// A process in a container with its own namespace of this kind.
        Contained(&'static str),
        /// A root process whose executable differs from its arguments.
        Executing(&'static str),
        /// A process whose namespaces are only visible to root.
        Unseen,
    }

    /// Adds a process to `/proc`.
    pub(in crate::state) fn run(files: &FakeFiles, pid: u32, which: Which, command: &str) {
        let program = command.split(' ').next().unwrap_or_default();
        let name = program.rsplit('/').next().unwrap_or_default();
        run_as(files, (pid, name), which, command);
    }

    /// Adds a process whose name (`comm`) differs from its command to `/proc`.
    pub(in crate::state) fn run_as(
        files: &FakeFiles,
        (pid, name): (u32, &str),
        which: Which,
        command: &str,
    ) {
        let put = |file: &str, text: String| files.put(&format!("/proc/{pid}/{file}"), text);
        put("comm", format!("{name}\n"));
        put("cmdline", command.replace(' ', "\0"));
        let uid = match which {
            Which::OfUser(uid) => uid,
            _ => 0,
        };
        // Real and effective UID. `sudo` initially has the real UID of its user, but the effective UID 0.
        put("status", format!("Uid:\t{uid}\t0\t0\t0\n"));
        let exe = match which {
            Which::Executing(exe) => exe,
            _ => command.split(' ').next().unwrap_or_default(),
        };
        for namespace in ["pid", "mnt"] {
            let number = match which {
                Which::Contained(own) if own == namespace => 2,
                _ => 1,
            };
            let link = |process: &str, number: u32| {
                let place = format!("/proc/{process}/ns/{namespace}");
                files.put_link(&place, &format!("{namespace}:[{number}]"));
            };
            link("self", 1);
            if !matches!(which, Which::Unseen) {
                link(&pid.to_string(), number);
            }
        }
        files.put_link(&format!("/proc/{pid}/exe"), exe);
    }

    #[test]
    fn only_host_processes_of_root_are_trusted() {
        let deleted = format!("/usr/bin/kubelet{DELETED}");
        for (which, believed) in [
            (Which::Own, true),
            (Which::Executing(deleted.leak()), true),
            (Which::Executing("/usr/bin/sudo"), false),
            (Which::Executing("/usr/bin/kubelet-not"), false),
            (Which::OfUser(1000), false),
            (Which::Contained("pid"), false),
            (Which::Contained("mnt"), false),
            (Which::Unseen, false),
        ] {
            let (host, fakes) = fake::host();
            run(&fakes.files, 7, which, "/usr/bin/kubelet --v=2");
            let state = state_below_root(&host, facts());
            let found = state.processes_of(&["kubelet"]).expect("readable");
            let found: Vec<(&str, u32)> = (found.iter())
                .map(|(name, process)| (name.as_str(), process.pid))
                .collect();
            let expected: &[(&str, u32)] = if believed { &[("kubelet", 7)] } else { &[] };
            assert_eq!(found, expected, "{which:?}");
            assert!(state.processes_of(&["k3s"]).expect("readable").is_empty());
        }
    }
}

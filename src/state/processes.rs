//! Whose command lines are believed. Every user, and every process of a pod, may call its processes as it likes and give them
//! any arguments, and this program acts as root on what it reads.

use super::{State, StateError};
use crate::host::{
    FilesError,
    system::{Process, is_in_own_namespaces, link_of},
};

/// What the kernel adds to the name of a program whose file was replaced since, as by an upgrade: `d_path()`.
const DELETED: &str = " (deleted)";

impl State {
    /// The processes that run one of these programs of the machine, each with the name of its program. Each belongs to root,
    /// is in no container, and its executable is called so: the first argument alone says nothing, because `sudo`, which
    /// runs as root before it asks for a password, can be started with any.
    ///
    /// # Errors
    /// When processes cannot be listed, or one cannot be looked at by root.
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

    /// The name of the program that a process executes; `None` if it is in a container, has ended, or only root may look.
    fn own_program(&self, pid: u32) -> Result<Option<String>, FilesError> {
        let files = &*self.host.files;
        if !is_in_own_namespaces(files, pid)? {
            return Ok(None);
        }
        let file = link_of(files, pid, &format!("/proc/{pid}/exe"))?;
        Ok(file.and_then(|file| {
            let name = file.file_name()?;
            Some(name.strip_suffix(DELETED).unwrap_or(name).to_owned())
        }))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::DELETED;
    use crate::{
        host::fake::{self, FakeFiles},
        steps::fixtures::{facts, state_below_root},
    };

    /// Whose process it is.
    #[derive(Debug, Clone, Copy)]
    pub(in crate::state) enum Which {
        /// The machine's own.
        Own,
        /// A user's.
        OfUser(u32),
        /// One in a container that has a namespace of its own.
        Contained(&'static str),
        /// One of root that executes another program than its arguments say.
        Executing(&'static str),
        /// One whose links only root may see.
        Unseen,
    }

    /// Puts a process into `/proc`.
    pub(in crate::state) fn run(files: &FakeFiles, pid: u32, which: Which, command: &str) {
        let program = command.split(' ').next().unwrap_or_default();
        let name = program.rsplit('/').next().unwrap_or_default();
        run_as(files, (pid, name), which, command);
    }

    /// The same, for a process that has given itself a name.
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
        // `sudo` has the real user of the one who started it only until it has begun.
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
    fn only_the_machines_own_processes_are_believed() {
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

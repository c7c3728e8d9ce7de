//! Checks that untrusted values cannot be parsed as options. Names of nodes, images, units, packages and files come from
//! settings, other programs and repositories, and the commands here run as root.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use camino::Utf8Path;

use super::{
    gridd, imex,
    initramfs::{Generator, dracut::Dracut, update_initramfs::UpdateInitramfs},
    kernel_log, kmod,
    kubernetes::kubectl::PROGRAMS,
    mps, nvidia_smi,
    packages::{
        self, Manager, Mark, Removals, Settings, TransactionRequest, dnf,
        mirrors::{Download, ListedRepository, Mirror},
    },
    prebuilt, selinux, sysctl, systemctl, tar,
};
use crate::{
    dkms,
    host::{Cmd, Query, exec::built, fake::FakeFiles},
    joins::kubeadm,
    runtimes::{
        OneContainer, RuntimeKind,
        containerd::{self, ctr},
        crictl, crio, docker, podman,
    },
};

/// Values that a program would parse as options. Each contains [`MARK`].
const VALUES: [&str; 3] = ["-HOSTILE", "--kubeconfig=/HOSTILE", "--HOSTILE"];
const MARK: &str = "HOSTILE";

/// Files outside of `tools`, `dkms`, `joins` and `runtimes` that build commands: the number of these commands, and the reason
/// why they are not in [`commands`].
const ELSEWHERE: [(&str, usize, &str); 6] = [
    (
        "src/checks/program.rs",
        1,
        "an absolute path from a file owned by root, and only root can write the program",
    ),
    ("src/engine/reboot.rs", 1, "all arguments are constants"),
    (
        "src/state/runtimes.rs",
        1,
        "the program is a constant in the table of runtimes",
    ),
    ("src/change/tool.rs", 1, "the step passes the arguments"),
    (
        "src/joins/command.rs",
        1,
        "a command that the administrator configured",
    ),
    (
        "src/modules/registry.rs",
        1,
        "the name from a file owned by root follows `docker-credential-`, and is one word",
    ),
];

/// Returns every command with this value in each argument that accepts a value.
fn commands(value: &str) -> Vec<Cmd> {
    let (path, names) = (Utf8Path::new(value), [value]);
    let owned = [value.to_owned()];
    let node = "gpu-1".parse().expect("a name");
    let taint = "a=b:NoSchedule".parse().expect("a taint");
    let minute = Duration::from_secs(60);
    // Addresses and profiles have types, so they cannot be options.
    let gpu = "0000:18:00.0".parse().expect("an address");
    let profile: crate::mig::Profile = "1g.10gb".parse().expect("a profile");
    let mut cmds = vec![
        ctr::end_task(value, value),
        ctr::remove_container(value, value),
        ctr::pull(value, value, true),
        ctr::remove(value, value),
        ctr::export(value, value, path),
        ctr::import(value, path),
        dkms::install(value, value, value),
        dkms::remove(value, value, value),
        docker::pull(value),
        docker::remove_image(value),
        docker::remove_container(value),
        docker::import(path, value),
        docker::save(value, path),
        docker::load(path),
        docker::tag(value, value),
        Dracut.rebuild(value),
        UpdateInitramfs.rebuild(value),
        kmod::load(value),
        kmod::remove(value),
        kubeadm::join(path, minute),
        kubeadm::reset(value),
        nvidia_smi::set_mig_mode(gpu, true),
        nvidia_smi::destroy_compute_instances(gpu),
        nvidia_smi::destroy_gpu_instances(gpu),
        nvidia_smi::create_instances(gpu, &[(profile, Some(0))]),
        nvidia_smi::reset(&[gpu]),
        podman::pull(value),
        podman::save(value, path),
        podman::load(path),
        podman::tag(value, value),
        podman::remove_image(value),
        podman::remove_container(value),
        prebuilt::decompress(Utf8Path::new(&format!("{value}.xz"))).expect("compressed"),
        prebuilt::decompress(Utf8Path::new(&format!("{value}.zst"))).expect("compressed"),
        selinux::restore(&[path]),
        sysctl::set(value, value),
        sysctl::swap_off(value),
        sysctl::swap_on(value),
        systemctl::act("start", value),
        systemctl::start_no_block(value),
        systemctl::run("gpu-bootstrap", &["Type=exec"], &owned),
        systemctl::daemon_reload(),
        tar::pack(path, path, &names),
    ];
    let container = OneContainer {
        name: "gpu-bootstrap-probe",
        image: Some(value),
        own_image: "gpu-bootstrap/probe:local",
        root: path,
        mounts: &[],
        command: &[],
    };
    for client in RuntimeKind::ALL
        .into_iter()
        .filter_map(|kind| kind.runtime().containers())
    {
        cmds.push(client.start(&container));
    }
    let mut queries: Vec<Query> = vec![
        containerd::version(),
        containerd::config_dump(),
        crictl::info(crio::SOCKET),
        crictl::running(crio::SOCKET),
        crio::status(),
        crio::config(),
        ctr::version(),
        ctr::plugins(),
        ctr::images(value),
        ctr::containers(value),
        ctr::tasks(value),
        dkms::status(value),
        docker::info(),
        docker::daemon_version(),
        // The flags are from the daemon's systemd unit, so they are options.
        docker::validate(&[], path),
        docker::running(),
        docker::inspect_image(value),
        Dracut.list(path),
        UpdateInitramfs.list(path),
        gridd::journal(),
        gridd::status(),
        imex::state(),
        kernel_log::journal(),
        kernel_log::ring(),
        kmod::field("version", value),
        mps::percentage(),
        mps::servers(),
        mps::clients(1),
        podman::has_image(value),
        podman::image_id(value),
        systemctl::show(value),
        systemctl::is_enabled(value),
        systemctl::once(value),
        systemctl::command(value),
        systemctl::kill_mode(value),
        systemctl::sandbox(value),
        systemctl::needs_reload(value),
        systemctl::is_system_running(),
        systemctl::version(),
        systemctl::last_words(value),
        dnf::database::all(),
        dnf::database::asked_for(),
        dnf::database::owned(),
        dnf::database::owned_by(&names),
        dnf::database::keys(),
    ];
    for kubectl in PROGRAMS {
        let labels = [(value, Some(value)), (value, None)];
        cmds.extend([
            kubectl.label(path, &node, labels.into_iter()),
            kubectl.replace_status(path, &node, value.to_owned()),
            kubectl.untaint(path, &node, &[&taint]),
            kubectl.drain(path, &node, minute),
            kubectl.delete(path, &node),
            kubectl.evict(path, (value, value), value.to_owned()),
            kubectl.patch(path, &node, &serde_json::json!({"a": value})),
        ]);
        queries.extend([
            kubectl.node(path, &node),
            kubectl.version(path),
            kubectl.pods(path, &node),
            kubectl.may_evict(path, (value, value), value.to_owned()),
        ]);
    }
    cmds.extend(queries.iter().map(|query| query.cmd().clone()));
    cmds.extend(package_commands(value));
    cmds
}

/// Returns the commands of all methods of a package manager, see [`commands`].
fn package_commands(value: &str) -> Vec<Cmd> {
    let (names, owned) = ([value], [value.to_owned()]);
    let settings = Settings {
        lock_timeout_seconds: 1,
        proxy: None,
        no_proxy: Some(value.to_owned()),
    };
    let requests = [
        TransactionRequest::Install {
            packages: &owned,
            removing: &[],
        },
        TransactionRequest::Install {
            packages: &owned,
            removing: &owned,
        },
        TransactionRequest::Move {
            packages: &owned,
            removing: &[],
        },
        TransactionRequest::Purge(&owned),
        TransactionRequest::Remove(&owned),
        TransactionRequest::Reinstall(&owned),
        TransactionRequest::Fix,
    ];
    let files = FakeFiles::new();
    files.put("/var/cache/dnf/HOSTILE/pubring/pubring.kbx", "");
    let (mut cmds, mut queries) = (Vec::new(), Vec::new());
    for backend in Manager::ALL.map(Manager::backend) {
        cmds.push(backend.refresh(&settings, true));
        cmds.extend(backend.configure());
        cmds.extend(backend.run_triggers(&owned));
        cmds.extend(backend.download_beside(&settings, &owned));
        cmds.extend(backend.forget_keys(&owned));
        cmds.extend(backend.follow_up(&files).expect("a cache"));
        let marks = [Mark::Hold, Mark::Unhold, Mark::Automatic];
        cmds.extend(marks.map(|mark| backend.mark(mark, &owned)));
        if let Some(streams) = backend.streams() {
            cmds.push(streams.enable(&settings, value, value));
            cmds.push(streams.reset(&settings, value));
        }
        if let Some(mirrors) = backend.mirrors() {
            let download = Download {
                from: value.to_owned(),
                file: value.to_owned(),
                ..Download::default()
            };
            cmds.extend(mirrors.fetch(&settings, &[&download], value.into()));
            queries.extend(mirrors.list());
            let repository = ListedRepository {
                mirror: Mirror {
                    id: "base".to_owned(),
                    ..Mirror::default()
                },
                url: String::new(),
                lists: Vec::new(),
            };
            let package = (value.to_owned(), value.to_owned());
            queries.extend(mirrors.locate(&[package], Utf8Path::new("/run/state"), &[repository]));
        }
        queries.push(backend.offers(&names));
        queries.push(backend.offers_of_all_streams(&names));
        queries.extend(backend.names(value));
        queries.extend(backend.contents(&names));
        queries.extend(backend.lower_bounds(&names));
        let builder = backend.builder();
        queries.extend(builder.into_iter().flat_map(|one| one.relations(&names)));
        queries.push(backend.upgrade());
        queries.extend(backend.unfinished());
        queries.extend(backend.configuration_of(&names));
        for request in &requests {
            for removals in [Removals::None, Removals::Approved] {
                cmds.push(backend.perform(&settings, request, removals));
            }
            cmds.push(backend.defer_triggers(backend.download(&settings, request)));
            queries.push(backend.simulate(&settings, request));
            queries.push(backend.estimate(&settings, request));
        }
    }
    cmds.extend(queries.iter().map(|query| query.cmd().clone()));
    cmds
}

/// Returns the reason if a program could parse the value as an option.
fn fault(cmd: &Cmd, value: &str) -> Option<String> {
    if cmd.program.contains(MARK) {
        return Some("the value is the program".to_owned());
    }
    let options = cmd.args.iter().take_while(|arg| *arg != "--");
    let mut before = "";
    for arg in options {
        // The dkms parser takes the argument after these options as their value, whatever it is, and supports no other form of
        // `-v` (`read_arg`, dkms 3.0.10).
        let is_value = cmd.program == "dkms" && ["-m", "-v", "-k"].contains(&before);
        before = arg;
        let prefix = match arg.find(value) {
            Some(at) => &arg[..at],
            None if arg.contains(MARK) => arg.split(MARK).next().unwrap_or_default(),
            None => continue,
        };
        // An option with its value: `--name=VALUE` or `-nVALUE`. dnf accepts patterns, see `dnf/commands.rs`.
        let is_option = prefix.starts_with('-') && (prefix.contains('=') || prefix.len() == 2);
        if !(is_option || is_value || arg.starts_with("[-]")) {
            return Some(format!("`{arg}` precedes `--`"));
        }
    }
    None
}

#[test]
fn values_cannot_be_command_options() {
    for value in VALUES {
        for cmd in commands(value) {
            assert_eq!(fault(&cmd, value), None, "{}", cmd.line());
        }
    }
}

#[test]
fn programs_of_package_managers_are_listed() {
    for cmd in package_commands("a") {
        let name = cmd.program.rsplit('/').next().expect("a name");
        assert!(packages::PROGRAMS.contains(&name), "{}", cmd.line());
    }
}

#[test]
fn value_that_could_be_an_option_is_found() {
    for value in VALUES {
        for args in [
            vec!["get", value],
            vec!["get", "--namespace", value],
            vec![value, "--", "x"],
        ] {
            let cmd = Cmd::new("kubectl", args);
            assert!(fault(&cmd, value).is_some(), "{}", cmd.line());
        }
        let fine = Cmd::new(
            "kubectl",
            [format!("--x={value}"), "--".into(), value.into()],
        );
        assert_eq!(fault(&fine, value), None);
    }
}

/// Collects the lines of the program, without its tests, that build a command.
fn places(directory: &Path, found: &mut BTreeMap<String, Vec<u32>>) {
    for entry in fs::read_dir(directory).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.expect("a name").to_owned();
        if path.is_dir() {
            // `src/host` implements the execution of commands. The only commands that it builds run gpu-bootstrap again.
            if name != "tests" && !path.ends_with("src/host") {
                places(&path, found);
            }
            continue;
        }
        if !name.ends_with(".rs") || name == "tests.rs" {
            continue;
        }
        let text = fs::read_to_string(&path).expect("text");
        let program = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        let program = program
            .split("#[cfg(test)]\npub")
            .next()
            .unwrap_or_default();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let file = path.strip_prefix(root).expect("below the root");
        for (number, line) in program.lines().enumerate() {
            if line.contains("Cmd::new(") || line.contains("Query::new(") {
                let lines = found.entry(file.display().to_string()).or_default();
                lines.push(number as u32 + 1);
            }
        }
    }
}

#[test]
fn every_command_of_the_program_is_covered() {
    let mut all = BTreeMap::new();
    places(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut all);
    for (file, number, why) in ELSEWHERE {
        let lines = all.remove(file).unwrap_or_default();
        assert_eq!(lines.len(), number, "{file}: {why}");
    }
    assert!(all.len() > 20, "no commands were found: {all:?}");
    commands(VALUES[0]);
    let built = built::places();
    let missing: Vec<String> = (all.iter())
        .flat_map(|(file, lines)| lines.iter().map(move |line| (file.clone(), *line)))
        .filter(|place| !built.contains(place))
        .map(|(file, line)| format!("{file}:{line}"))
        .collect();
    assert!(missing.is_empty(), "add them to `commands`: {missing:#?}");
}

/// Checks each method, because a single line may build the commands of several methods.
#[test]
fn every_package_manager_command_is_covered() {
    let own = include_str!("tests.rs");
    let mut count = 0;
    for text in [
        include_str!("packages/mod.rs"),
        include_str!("packages/database.rs"),
        include_str!("packages/sources.rs"),
        include_str!("packages/offers.rs"),
        include_str!("packages/transactions.rs"),
        include_str!("packages/messages.rs"),
    ] {
        for method in text.split("    fn ").skip(1) {
            let signature = method.split(['{', ';']).next().unwrap_or_default();
            let name = signature.split(['(', '<']).next().unwrap_or_default();
            let result = signature.split("->").nth(1).unwrap_or_default();
            if result.contains("Cmd") || result.contains("Query") {
                count += 1;
                let calls = ["backend", "streams"].map(|object| format!("{object}.{name}("));
                assert!(calls.iter().any(|call| own.contains(call)), "{name}");
            }
        }
    }
    assert!(count > 15, "{count}");
}

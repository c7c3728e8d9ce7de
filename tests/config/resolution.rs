//! Resolution of settings, profiles and facts to the desired state.

use gpu_bootstrap::compat::matrix::Fabric;
use gpu_bootstrap::config::{
    desired::{Existing, Repository, RuntimeKind},
    profile::Profile,
};
use gpu_bootstrap::error::{Report as _, one_line};
use gpu_bootstrap::facts::PciFact;
use gpu_bootstrap::model::{
    pattern,
    version::{Branch, KernelVersion},
};

use super::machine::{B200, H100, Machine, T4, V100};

fn repository<'a>(all: &'a [Repository], name: &str) -> &'a Repository {
    let found = all.iter().find(|repository| repository.name == name);
    found.unwrap_or_else(|| panic!("no `{name}` in {all:?}"))
}

#[test]
fn later_sources_win_and_report_their_location() {
    let branch = |machine: &Machine| {
        let resolution = machine.resolution();
        let places: Vec<String> = resolution
            .provenance
            .iter()
            .map(ToString::to_string)
            .collect();
        (
            resolution.desired.driver.unwrap().branch.to_string(),
            places.join("\n"),
        )
    };
    let mut machine = Machine::debian();
    assert_eq!(branch(&machine), ("580".into(), String::new()));
    machine = machine.config("# first\n[driver]\nbranch = 595\n");
    assert_eq!(
        branch(&machine),
        (
            "595".into(),
            "driver.branch = 595 (from /etc/gpu-bootstrap/config.toml:3:10)".into()
        )
    );
    machine = machine
        .file(
            "/etc/gpu-bootstrap/config.d/10-a.toml",
            "driver.branch = 610\n",
        )
        .file(
            "/etc/gpu-bootstrap/config.d/20-b.toml",
            "driver = { branch = \"R580\" }\n",
        )
        .file("/etc/gpu-bootstrap/config.d/README", "not ours\n");
    let drop_in = "driver.branch = \"R580\" (from /etc/gpu-bootstrap/config.d/20-b.toml:1:21)";
    assert_eq!(branch(&machine), ("580".into(), drop_in.into()));
    machine = machine.file("/root/mine.toml", "[driver]\nbranch = 610");
    machine.ask.config.push("/root/mine.toml".into());
    assert_eq!(branch(&machine).0, "610");
    machine = machine.env("GPU_BOOTSTRAP_DRIVER__BRANCH", "595");
    let (picked, place) = branch(&machine);
    assert_eq!(picked, "595");
    assert!(
        place.contains("environment variable GPU_BOOTSTRAP_DRIVER__BRANCH"),
        "{place}"
    );
    machine = machine
        .env("PATH", "/bin")
        .env("GPU_BOOTSTRAP_LOG", "debug")
        .set("driver.branch=580");
    let (picked, place) = branch(&machine);
    assert_eq!(picked, "580");
    assert_eq!(place, "driver.branch = 580 (from `--set driver.branch`)");
}

#[test]
fn set_values_are_toml_text_or_lists() {
    let desired = Machine::debian()
        .set("driver.cuda=12.4,12.8")
        .set("driver.version=580.159.04")
        .set("driver.existing=keep")
        .set("runtime.use=docker")
        .set("toolkit.version=1.20")
        .set("hold-extra=[\"cuda-toolkit-*\"]")
        .set("repositories.\"docker\".enabled = true")
        .resolution()
        .desired;
    let driver = desired.driver.unwrap();
    assert_eq!(driver.existing, Existing::Keep);
    assert_eq!(driver.version.unwrap().as_str(), "580.159.04");
    assert_eq!(driver.packages[0].version.as_deref(), Some("580.159.04-*"));
    assert_eq!(desired.pins[0].version, "580.159.04-*");
    assert_eq!(desired.runtimes.len(), 1);
    assert_eq!(
        desired.toolkit.unwrap().packages[3].version.as_deref(),
        Some("1.20-*")
    );
    assert_eq!(
        desired.hold.patterns.last().map(String::as_str),
        Some("cuda-toolkit-*")
    );
    assert_eq!(
        desired.hold.blacklist.last().map(String::as_str),
        Some("^cuda-toolkit-.*$")
    );
    repository(&desired.repositories, "docker");
    let none = Machine::debian().set("runtime.use=[]").resolution().desired;
    assert!(none.runtimes.is_empty());
}

#[test]
fn debian_with_its_own_packages_and_a_local_toolkit() {
    let text = r#"
[driver]
source = "distribution"
branch = 535

[repositories.nvidia-container-toolkit]
url = "http://127.0.0.1:8099/toolkit/"
key-url = "http://127.0.0.1:8099/key.asc"
fingerprints = ["0123 4567 89ab cdef 0123  4567 89ab cdef 0123 4567"]
"#;
    let desired = Machine::debian().config(text).resolution().desired;
    insta::assert_json_snapshot!(desired);
}

#[test]
fn debian_13_gets_a_branch_of_its_repository() {
    let machine = |gpu| Machine::new("debian", "13", "x86_64", &[gpu]);
    let desired = machine(H100).resolution().desired;
    let driver = desired.driver.expect("a driver");
    assert_eq!((driver.branch, &*driver.source), (Branch(595), "nvidia"));

    for key in ["driver.branch=580", "driver.version=580.178.04"] {
        let error = machine(H100).set(key).load().unwrap_err().to_string();
        assert!(
            error.contains("is not in `nvidia` for debian 13"),
            "{error}"
        );
    }
    // Only the Debian archive has a branch that supports Volta.
    let error = machine(V100).load().unwrap_err();
    let hint = error.hint().unwrap_or_default();
    assert!(
        hint.contains("`driver.source = \"distribution\"`"),
        "{error}: {hint}"
    );
}

#[test]
fn trial_accepts_only_archive_versions() {
    let refused = |version: &str, trial| {
        let version = format!("driver.version={version}");
        let mut machine = (Machine::debian().set("driver.source=distribution")).set(&version);
        machine.ask.flags.trial = trial;
        machine.load().err().map(|error| error.to_string())
    };
    let why = refused("535.247.01", true).unwrap_or_default();
    assert!(
        why.contains("is not in `distribution` for debian 12, which has 535.261.03"),
        "{why}"
    );
    assert_eq!(refused("535.261.03", true), None);
    // On a machine, the package lists decide.
    assert_eq!(refused("535.247.01", false), None);
}

#[test]
fn kubeadm_needs_kernel_4_19_and_cgroup_v2() {
    let digest = "ab".repeat(32);
    let machine = |kernel: Option<&str>| {
        let settings = format!(
            "runtime.use = [\"containerd\"]\n[cluster]\njoin = \"kubeadm\"\nversion = \"1.35\"\n\
             server = \"10.0.0.1:6443\"\ntoken = \"file:/t\"\nca-cert-hashes = [\"sha256:{digest}\"]\n"
        );
        let mut machine = Machine::new("almalinux", "8", "x86_64", &[H100]).config(&settings);
        let kernel = kernel.map(|kernel| kernel.parse::<KernelVersion>().expect("a kernel"));
        machine.ask.flags.trial = kernel.is_none();
        let found = &mut machine.facts.kernel;
        (found.running, found.next_boot) = (kernel.clone(), kernel.clone());
        found.installed = kernel.into_iter().collect();
        machine
    };
    let old = Some("4.18.0-553.el8_10.x86_64");
    for kernel in [old, None] {
        let error = machine(kernel).load().unwrap_err();
        let (why, hint) = (error.to_string(), error.hint().unwrap_or_default());
        assert!(why.contains("requires kernel 4.19 or newer"), "{why}");
        assert!(hint.contains("[\"SystemVerification\"]"), "{hint}");
    }
    let ignored = machine(old).set("cluster.ignore-preflight-errors=SystemVerification");
    assert!(ignored.resolution().desired.cluster.is_some());
    let newer = machine(Some("5.14.0-570.12.1.el9_6.x86_64"));
    assert!(newer.resolution().desired.cluster.is_some());
    let mut with_cgroup_v1 = newer;
    with_cgroup_v1.facts.kernel.cgroup_v1 = true;
    let error = with_cgroup_v1.load().unwrap_err();
    let (why, hint) = (error.to_string(), error.hint().unwrap_or_default());
    assert!(why.contains("the machine uses cgroup v1"), "{why}");
    assert!(
        hint.starts_with("boot with `systemd.unified_cgroup_hierarchy=1`"),
        "{hint}"
    );
    let ignored = with_cgroup_v1.set("cluster.ignore-preflight-errors=SystemVerification");
    assert!(ignored.resolution().desired.cluster.is_some());
}

/// An unattended upgrade would restart the runtime.
#[test]
fn installed_alternatives_of_docker_and_containerd_are_held() {
    for name in ["debian", "ubuntu"] {
        let profile = Profile::built_in(name).unwrap();
        let daemons = [RuntimeKind::Docker, RuntimeKind::Containerd];
        let rows = (profile.runtime.iter()).filter(|row| daemons.contains(&row.kind));
        for alternative in rows.flat_map(|row| &row.alternatives) {
            let held = (profile.hold.patterns.iter()).any(|one| pattern::matches(one, alternative));
            assert!(held, "{name}: {alternative}");
        }
        let blacklist = profile.hold.blacklist.join(" ");
        assert!(blacklist.contains("^moby-(engine|containerd)$"), "{name}");
    }
}

#[test]
fn debian_by_default() {
    let resolution = Machine::debian().resolution();
    let desired = resolution.desired;
    let cuda = repository(&desired.repositories, "nvidia-cuda");
    assert_eq!(
        cuda.url,
        "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/"
    );
    assert_eq!(
        cuda.key_url.as_deref(),
        Some(format!("{}3bf863cc.pub", cuda.url).as_str())
    );
    assert_eq!(desired.pins[0].priority, 1001);
    let kinds: Vec<RuntimeKind> = desired
        .runtimes
        .iter()
        .map(|runtime| runtime.kind)
        .collect();
    assert_eq!(kinds, [RuntimeKind::Docker]);
    assert_eq!(
        resolution.reasons,
        ["container runtime docker: the default if the machine does not join a cluster"]
    );
    assert!(resolution.warnings.is_empty());
}

#[test]
fn probe_image_matches_the_driver_or_is_configured() {
    let image = |machine: Machine| machine.resolution().desired.validation.image;
    let cuda = Machine::debian().set("validation.image=cuda");
    assert_eq!(
        image(cuda.set("driver.branch=580")).as_deref(),
        Some("docker.io/nvidia/cuda:13.0.2-base-ubuntu24.04")
    );
    // An image of the distribution family, if one exists.
    let family = Machine::new("almalinux", "9.6", "x86_64", &[V100]);
    assert_eq!(
        image(family.set("validation.image=cuda")).as_deref(),
        Some("docker.io/nvidia/cuda:12.9.1-base-ubi9")
    );
    let named = Machine::debian().set("validation.image=registry/x@sha256:00");
    assert_eq!(image(named).as_deref(), Some("registry/x@sha256:00"));
    assert_eq!(image(Machine::debian()), None);
}

#[test]
fn repositories_are_moved_replaced_added_and_removed() {
    let text = r#"
[repositories.nvidia-cuda]
url = "https://mirror.example/{cuda-arch}"
[repositories.nvidia-container-toolkit]
keyring = "/usr/share/keyrings/mine.gpg"
[repositories.own]
url = "http://127.0.0.1/own"
suites = ["{codename}"]
keyring = "/usr/share/keyrings/own.gpg"
"#;
    let desired = Machine::debian().config(text).resolution().desired;
    let moved = repository(&desired.repositories, "nvidia-cuda");
    assert_eq!(moved.url, "https://mirror.example/x86_64");
    assert_eq!(
        moved.key_url.as_deref(),
        Some("https://mirror.example/x86_64/3bf863cc.pub")
    );
    assert_eq!(
        moved.fingerprints,
        ["EB693B3035CD5710E231E123A4B469963BF863CC"]
    );
    let own_key = repository(&desired.repositories, "nvidia-container-toolkit");
    assert_eq!(own_key.key_url, None);
    assert!(own_key.fingerprints.is_empty() && own_key.keyring.is_some());
    repository(&desired.repositories, "own");
    let without = Machine::debian()
        .config("repositories.nvidia-cuda.enabled = false")
        .resolution()
        .desired;
    assert!(
        without
            .repositories
            .iter()
            .all(|repository| repository.name != "nvidia-cuda")
    );
    // If the fingerprint of a key is unknown, the key file is verified by digest.
    let desired = Machine::new("almalinux", "10.1", "x86_64", &[H100])
        .resolution()
        .desired;
    let cuda = repository(&desired.repositories, "nvidia-cuda");
    assert!(cuda.fingerprints[0].starts_with("sha256:"), "{cuda:?}");
}

#[test]
fn existing_archive_source_is_extended() {
    let distribution = |machine: Machine| {
        machine
            .set("driver.source=distribution")
            .resolution()
            .desired
            .repositories
    };
    let added = distribution(Machine::debian());
    let non_free = repository(&added, "debian-non-free");
    assert_eq!(non_free.url, "http://mirror.example/debian");
    assert_eq!(non_free.suites, ["bookworm", "bookworm-updates"]);
    assert_eq!(
        non_free.components,
        ["contrib", "non-free", "non-free-firmware"]
    );
    assert_eq!(
        non_free.keyring.as_ref().map(|path| path.as_str()),
        Some("/usr/share/keyrings/debian-archive-keyring.gpg")
    );
    // Source files written by gpu-bootstrap do not count as existing.
    let ours = "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\n\
                Components: contrib non-free non-free-firmware\n";
    let again = Machine::debian().file(
        "/etc/apt/sources.list.d/gpu-bootstrap-debian-non-free.sources",
        ours,
    );
    assert_eq!(distribution(again), added);
    let complete = Machine::debian().file(
        "/etc/apt/sources.list",
        "deb http://mirror.example/debian bookworm contrib non-free non-free-firmware\n",
    );
    assert!(
        distribution(complete)
            .iter()
            .all(|r| r.name != "debian-non-free")
    );
}

#[test]
fn machines_without_a_gpu() {
    let bare = || Machine::new("debian", "12", "x86_64", &[]);
    let desired = bare().config("gpu = \"optional\"").resolution().desired;
    assert!(desired.driver.is_none() && desired.toolkit.is_none() && desired.cdi.is_none());
    assert!(!desired.runtimes.is_empty());

    // An error that affects all machines is also reported on this one.
    let wrong = bare().config("cluster.join = \"k3s\"").load();
    assert_eq!(
        wrong.err().map(|error| error.reason()),
        Some("config-value")
    );

    let mut image = bare();
    image.ask.flags.image = true;
    assert_eq!(
        image.load().err().map(|error| error.reason()),
        Some("no-gpu")
    );
    image.ask.flags.assume_gpus = vec![H100.parse().unwrap(), T4.parse().unwrap()];
    let desired = image.resolution().desired;
    assert!(desired.image && desired.driver.is_some());
    image.ask.flags.assume_gpus.clear();
    let named = image.config("driver = { branch = 580, flavor = \"open\" }");
    assert!(named.resolution().desired.driver.is_some());
}

#[test]
fn gpus_reserved_for_vms_are_ignored() {
    let machine = Machine::new("debian", "12", "x86_64", &[H100, V100]);
    let reserve = |gpu: usize| {
        machine.files.put_link(
            &format!("/sys/bus/pci/devices/0000:{gpu:02x}:00.0/driver"),
            "../../../bus/pci/drivers/vfio-pci",
        );
    };
    reserve(1);
    let resolution = machine.resolution();
    assert!(resolution.desired.driver.is_some());
    let named =
        |warning: &String| warning.contains("virtual machines") && warning.contains("0000:01:00.0");
    assert!(
        resolution.warnings.iter().any(named),
        "{:?}",
        resolution.warnings
    );
    reserve(0);
    let reason = machine.load().err().map(|error| error.reason());
    assert_eq!(reason, Some("gpus-reserved"));
    let desired = machine.config("gpu = \"optional\"").resolution().desired;
    assert!(desired.driver.is_none());
}

/// Each related distribution gets the packages and repositories of the supported one, with a warning.
#[test]
fn derived_distributions_use_related_profile_with_warning() {
    for profile in Profile::all_built_in().unwrap() {
        // `--os` provides only the name.
        let mut relatives: Vec<(&str, &str)> =
            profile.like.iter().map(|id| (id.as_str(), "")).collect();
        // No profile contains this distribution, so the first family with a profile is used.
        let family = format!("unknown {} debian", profile.os_ids[0]);
        relatives.push(("unnamed", &family));
        let mut resolved = 0;
        for release in &profile.release {
            let machine = || Machine::new(&profile.name, &release.version_id, "x86_64", &[H100]);
            // Not every release has a driver for this GPU.
            let Ok(own) = machine().load() else {
                continue;
            };
            resolved += 1;
            let own = own.desired;
            let driver = own.driver.expect("a driver");
            for (id, like) in &relatives {
                let mut relative = machine();
                let os = relative.facts.os.as_mut().unwrap();
                os.id = (*id).to_owned();
                os.id_like = like.split_whitespace().map(str::to_owned).collect();
                let resolution = relative.resolution();
                assert_eq!(resolution.desired.profile, profile.name, "{id}");
                let said = format!("no profile for `{id}`");
                let warnings = &resolution.warnings;
                assert!(warnings[0].contains(&said), "{warnings:?}");
                let found = resolution.desired.driver.expect(id);
                assert_eq!(found.packages, driver.packages, "{id}");
                assert_eq!(found.stream, driver.stream, "{id}");
                assert_eq!(resolution.desired.repositories, own.repositories, "{id}");
                // An explicitly selected profile gives no warning.
                relative.ask.profile = Some(profile.name.clone());
                let warnings = relative.resolution().warnings;
                assert!(
                    !warnings.iter().any(|one| one.contains(&said)),
                    "{warnings:?}"
                );
            }
        }
        assert!(resolved > 0, "{}", profile.name);
    }
}

#[test]
fn profiles_are_found_by_name_path_and_etc() {
    let built_in = include_str!("../../profiles/debian.toml");
    let changed = built_in.replace("\"apt-daily.timer\"", "\"mine.timer\"");
    let packages = |machine: Machine| machine.resolution().desired.packages;
    let has_mine = |machine| {
        packages(machine)
            .pause_units
            .contains(&"mine.timer".to_owned())
    };
    let in_etc = Machine::debian().file("/etc/gpu-bootstrap/profiles/debian.toml", &changed);
    assert!(has_mine(in_etc));
    let mut by_path = Machine::debian().file("/root/mine.toml", &changed);
    by_path.ask.profile = Some("/root/mine.toml".into());
    assert!(has_mine(by_path));
    let mut flag = Machine::debian().set("packages.lock-timeout=5s");
    flag.ask.lock_timeout_seconds = Some(3);
    assert_eq!(packages(flag).lock_timeout_seconds, 3);
    // An error in a profile includes its location.
    let broken = built_in.replace("codename = \"bookworm\"", "codenam = \"bookworm\"");
    let broken = Machine::debian().file("/etc/gpu-bootstrap/profiles/debian.toml", &broken);
    let error = broken
        .load()
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    assert!(
        error.contains("debian.toml:") && error.contains("codenam"),
        "{error}"
    );
}

#[test]
fn profiles_refer_only_to_existing_repositories() {
    let built_in = include_str!("../../profiles/debian.toml");
    for (from, to, about) in [
        ("schema = 1", "schema = 2", "schema"),
        (
            "releases = [\"12\", \"13\"]",
            "releases = [\"12\", \"14\"]",
            "`14`",
        ),
        (
            "repositories = [\"docker\"]",
            "repositories = [\"dokcer\"]",
            "dokcer",
        ),
        (
            "architectures = [\"x86_64\", \"aarch64\"]",
            "architectures = [\"mips\"]",
            "mips",
        ),
        (
            "fingerprints = [\"EB693B3035CD5710E231E123A4B469963BF863CC\"]",
            "",
            "no fingerprint",
        ),
        (
            "fingerprints = [\"EB693B3035CD5710E231E123A4B469963BF863CC\"]",
            "fingerprints = [\"3BF863CC\"]",
            "fingerprint",
        ),
        ("dkms = \"nvidia\"\n", "", "dkms"),
    ] {
        assert!(built_in.contains(from), "{from}");
        let error = Profile::parse(&built_in.replacen(from, to, 1), "x.toml").unwrap_err();
        assert!(error.to_string().contains(about), "{about}: {error}");
    }
}

#[test]
fn nvswitches_require_the_fabric_manager() {
    let mut machine = Machine::debian();
    let fabric = |machine: &Machine| {
        machine
            .resolution()
            .desired
            .driver
            .unwrap()
            .companions
            .needs
    };
    assert_eq!(fabric(&machine), Fabric::None);
    machine.facts.nvswitches.push(PciFact {
        pci_address: "0000:07:00.0".parse().unwrap(),
        pci_id: "10de:22a3".parse().unwrap(),
        name: None,
    });
    assert_eq!(fabric(&machine), Fabric::Fm);
    // The machine that builds an image may have other NVSwitches than its instances.
    machine.ask.flags.image = true;
    assert_eq!(fabric(&machine), Fabric::None);
    let resolution = machine.resolution();
    let driver = resolution.desired.driver.as_ref().unwrap();
    let doubt = "the GPUs need the fabric manager if the machine has NVSwitches";
    assert!(
        driver.warnings.iter().any(|w| w.contains(doubt)),
        "{driver:?}"
    );
    assert!(
        (driver.warnings.iter()).all(|warning| resolution.warnings.contains(warning)),
        "{:?}",
        resolution.warnings
    );
}

#[test]
fn fabric_manager_is_held_with_the_driver() {
    let switch = |machine: &mut Machine| {
        machine.facts.nvswitches.push(PciFact {
            pci_address: "0000:07:00.0".parse().unwrap(),
            pci_id: "10de:22a3".parse().unwrap(),
            name: None,
        });
    };
    // Package names include the branch in the Ubuntu archive, but not in the NVIDIA repository.
    for (source, names) in [
        (
            "distribution",
            ["nvidia-fabricmanager-580", "libnvidia-nscq-580"],
        ),
        ("nvidia", ["nvidia-fabricmanager", "libnvidia-nscq"]),
    ] {
        let mut machine = Machine::new("ubuntu", "24.04", "x86_64", &[H100])
            .config(&format!("[driver]\nsource = \"{source}\"\nbranch = 580\n"));
        let has = |machine: &Machine| {
            let desired = machine.resolution().desired;
            let driver = desired.driver.unwrap();
            let requested = |name: &str| driver.packages.iter().any(|spec| spec.name == name);
            assert_eq!(requested(names[0]), requested(names[1]));
            assert_eq!(
                desired.packages.guard.exact.len(),
                2 * usize::from(requested(names[0]))
            );
            let held =
                |name: &str| (desired.hold.patterns.iter()).any(|one| pattern::matches(one, name));
            assert!(held(names[0]) && held(names[1]));
            requested(names[0])
        };
        assert!(!has(&machine), "no fabric manager without NVSwitches");
        switch(&mut machine);
        assert!(has(&machine), "{source}");
        let driver = machine.resolution().desired.driver.unwrap();
        let unit = driver.companions.service.unwrap().unit;
        assert_eq!(unit.as_deref(), Some("nvidia-fabricmanager.service"));
    }
    // The Debian archive has no fabric manager.
    let mut machine = Machine::debian().config("driver.source = \"distribution\"");
    switch(&mut machine);
    let driver = machine.resolution().desired.driver.unwrap();
    assert_eq!(driver.companions.needs, Fabric::Fm);
    assert_eq!(driver.companions.service, None);
}

#[test]
fn nvlink5_boards_use_source_with_fabric_packages() {
    let mut machine = Machine::new("ubuntu", "24.04", "x86_64", &[B200]);
    let source = |machine: &Machine| machine.resolution().desired.driver.unwrap().source;
    assert_eq!(source(&machine), "distribution");
    machine.facts.nvlink_management = Some(true);
    assert_eq!(source(&machine), "nvidia");
    let driver = machine.resolution().desired.driver.unwrap();
    let names: Vec<&str> = driver
        .packages
        .iter()
        .map(|spec| spec.name.as_str())
        .collect();
    for name in [
        "nvidia-fabricmanager",
        "libnvsdm",
        "nvlsm",
        "infiniband-diags",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
    let service = driver.companions.service.unwrap();
    assert_eq!(service.modules, ["mlx5_core", "ib_umad"]);
    assert!(!service.exact.iter().any(|name| name == "nvlsm"));
    // A configured source is used, and the step reports the missing packages.
    let machine = machine.config("driver.source = \"distribution\"");
    let driver = machine.resolution().desired.driver.unwrap();
    assert_eq!(
        (driver.source.as_str(), driver.companions.service),
        ("distribution", None)
    );
}

#[test]
fn rack_boards_get_imex() {
    let machine = Machine::new("ubuntu", "24.04", "aarch64", &["10de:2941"]);
    let driver = machine.resolution().desired.driver.unwrap();
    let imex = format!("nvidia-imex-{}", driver.branch);
    assert!(
        driver.packages.iter().any(|spec| spec.name == imex),
        "{driver:?}"
    );
    assert_eq!(driver.companions.service.unwrap().unit, None);
}

#[test]
fn dcgm_has_the_cuda_version_of_the_driver() {
    let enabled = "driver.source = \"nvidia\"\ndcgm.enabled = true\n";
    let exporter = format!("{enabled}dcgm.exporter = true\ndcgm.port = 19400\n");
    let machine = Machine::new("ubuntu", "24.04", "x86_64", &[T4]).config(&exporter);
    let desired = machine.resolution().desired;
    let dcgm = desired.dcgm.expect("DCGM");
    let names: Vec<&str> = dcgm
        .packages
        .iter()
        .map(|spec| spec.name.as_str())
        .collect();
    assert_eq!(
        names,
        [
            "datacenter-gpu-manager-4-core",
            "datacenter-gpu-manager-4-cuda13",
            "datacenter-gpu-manager-4-proprietary",
            "datacenter-gpu-manager-exporter",
        ]
    );
    assert_eq!(dcgm.exporter_port, Some(19400));
    // A driver with CUDA 12. The built-in profile has none, so this is the profile of a site.
    let profile = include_str!("../../profiles/ubuntu.toml");
    let older = Machine::new("ubuntu", "24.04", "x86_64", &[T4])
        .config(&format!("{enabled}driver.branch = 570\n"))
        .file(
            "/etc/gpu-bootstrap/profiles/ubuntu.toml",
            &profile.replace("branches = [\"580\"]", "branches = [\"570\"]"),
        );
    let older = older.resolution().desired.dcgm.expect("DCGM");
    let older: Vec<&str> = older.packages.iter().map(|spec| &*spec.name).collect();
    assert_eq!(
        older,
        [
            "datacenter-gpu-manager-4-core",
            "datacenter-gpu-manager-4-cuda12",
            "datacenter-gpu-manager-4-proprietary",
        ]
    );
    let is_held = |name: &&str| desired.hold.patterns.iter().any(|pattern| pattern == name);
    assert!(names.iter().all(is_held), "{:?}", desired.hold.patterns);
    let kept = format!("{enabled}driver.existing = \"keep\"\n");
    for (id, version, text, reason) in [
        (
            "ubuntu",
            "26.04",
            enabled,
            "no DCGM packages are known for ubuntu 26.04",
        ),
        (
            "debian",
            "13",
            enabled,
            "no DCGM packages are known for debian 13",
        ),
        (
            "debian",
            "12",
            &*exporter,
            "no package of the exporter is known for debian 12",
        ),
        ("ubuntu", "24.04", "dcgm.enabled = true\n", "does not use"),
        (
            "ubuntu",
            "24.04",
            "dcgm.exporter = true\n",
            "needs `dcgm.enabled = true`",
        ),
        ("ubuntu", "24.04", &*kept, "depend on the CUDA version"),
    ] {
        let machine = Machine::new(id, version, "x86_64", &[T4]).config(text);
        let error = machine.load().expect_err("rejected");
        let why = one_line(&error);
        assert!(why.contains(reason), "{id} {version}: {why}");
    }
    // A node without a GPU may have the settings of the others.
    let cpu = format!("gpu = \"optional\"\n{enabled}");
    let desired = Machine::new("ubuntu", "24.04", "x86_64", &[])
        .config(&cpu)
        .resolution()
        .desired;
    assert_eq!(desired.dcgm, None);
}

#[test]
fn rdma_packages_need_the_repositories_of_the_driver() {
    for (id, version, source, expected) in [
        ("ubuntu", "24.04", "nvidia", &["nvidia-fs-dkms"][..]),
        ("ubuntu", "24.04", "distribution", &[]),
        ("debian", "12", "distribution", &["nvidia-fs-dkms"]),
        ("debian", "12", "nvidia", &[]),
        ("almalinux", "9.8", "nvidia", &["nvidia-fs-dkms"]),
        ("almalinux", "9.8", "distribution", &[]),
        (
            "amzn",
            "2023",
            "nvidia",
            &["gdrcopy-kmod", "nvidia-fs-dkms"],
        ),
    ] {
        let text = format!(
            "driver.source = \"{source}\"\nrdma.modules = [\"nvidia-fs\", \"efa\", \"gdrdrv\"]\n"
        );
        let machine = Machine::new(id, version, "x86_64", &[T4]).config(&text);
        let desired = machine.resolution().desired;
        let names: Vec<&str> = (desired.rdma.iter())
            .flat_map(|spec| spec.packages.iter().map(|one| one.name.as_str()))
            .collect();
        assert_eq!(names, expected, "{id} {version} {source}");
        let holds = &desired.hold.patterns;
        let is_held = |name: &&str| holds.iter().any(|one| pattern::matches(one, name));
        assert!(names.iter().all(is_held), "{holds:?}");
    }
}

#[test]
fn almalinux_modules_take_the_branch_from_package_lists() {
    let with = |text: &str| {
        let text = format!("driver.source = \"distribution\"\n{text}");
        Machine::new("almalinux", "9.8", "x86_64", &[T4]).config(&text)
    };
    let desired = with("").resolution().desired;
    let kernel = desired.kernel.as_ref().unwrap();
    let branches: Vec<u32> = (kernel.methods.iter())
        .map(|method| method.branch.expect("a branch").0)
        .collect();
    assert_eq!(
        branches[..2],
        [580, 595],
        "the branches have the order of the matrix"
    );
    assert!(branches.contains(&615));
    // The branch comes from the package lists, so no version is pinned.
    assert_eq!(desired.packages.guard.driver, None);
    let wanted = desired.driver.unwrap().packages[0].clone();
    assert_eq!(wanted.name, "kmod-nvidia-open");
    let version = "580.* for 5.14.0-570.12.1.el9_6.x86_64";
    assert_eq!(wanted.version.as_deref(), Some(version));

    let desired = with("driver.branch = 610").resolution().desired;
    assert_eq!(desired.kernel.unwrap().methods.len(), 1);
    assert_eq!(desired.packages.guard.driver, Some(Branch(610)));
    let keys = |release: &str| {
        let machine = Machine::new("almalinux", release, "aarch64", &[H100]);
        let machine = machine.config("driver.source = \"distribution\"");
        let all = machine.resolution().desired.repositories;
        repository(&all, "almalinux-nvidia").key_files.clone()
    };
    assert_eq!(keys("10.1"), ["/etc/pki/rpm-gpg/RPM-GPG-KEY-AlmaLinux-10"]);
}

#[test]
fn almalinux_modules_require_almalinux_kernels() {
    let distribution = "driver.source = \"distribution\"";
    let mut rocky = Machine::new("almalinux", "9.6", "x86_64", &[H100]).config(distribution);
    let os = rocky.facts.os.as_mut().unwrap();
    (os.id, os.id_like) = ("rocky".into(), vec!["rhel".into()]);
    let error = rocky.load().expect_err("no modules for Rocky");
    assert!(error.to_string().contains("no driver packages"), "{error}");
    let old = Machine::new("almalinux", "8.10", "x86_64", &[H100]).config(distribution);
    assert!(old.load().is_err());
    // If precompiled modules exist, a DKMS source suggests them as an alternative, and vice versa.
    let alternative = |text: &str| {
        let machine = Machine::new("almalinux", "9.6", "x86_64", &[H100]).config(text);
        let other = machine.resolution().desired.driver.unwrap().alternative;
        other.map(|other| (other.source, other.compiled))
    };
    assert_eq!(alternative(""), Some(("distribution".into(), false)));
    assert_eq!(alternative(distribution), Some(("nvidia".into(), true)));
}

#[test]
fn vgpu_host_is_rejected() {
    let mut machine = Machine::debian();
    machine.facts.virtual_functions.push(PciFact {
        pci_address: "0000:41:00.4".parse().unwrap(),
        pci_id: "10de:2330".parse().unwrap(),
        name: None,
    });
    let error = machine.load().unwrap_err();
    assert!(error.to_string().contains("virtual functions"), "{error}");
    assert!(
        error
            .hint()
            .is_some_and(|hint| hint.contains("sriov-manage"))
    );
}

/// The archive also has signed modules for 64 KiB page kernels and the Azure Grace kernel, so DKMS is not needed.
#[test]
fn arm_kernels_get_signed_modules() {
    for (version, kernel) in [
        ("24.04", "6.8.0-1060-aws-64k"),
        ("24.04", "6.8.0-1073-gcp-64k"),
        ("24.04", "6.8.0-1067-oracle-64k"),
        ("24.04", "6.14.0-1010-azure-nvidia"),
        ("26.04", "7.0.0-1008-nvidia-bos-64k"),
    ] {
        for (flavor, infix) in [("open", "-open"), ("proprietary", "")] {
            let mut machine = Machine::new("ubuntu", version, "aarch64", &[H100])
                .set("driver.source=distribution")
                .set(&format!("driver.flavor={flavor}"));
            let installed: KernelVersion = kernel.parse().unwrap();
            machine.facts.kernel.running = Some(installed.clone());
            machine.facts.kernel.next_boot = Some(installed.clone());
            machine.facts.kernel.installed = vec![installed];
            let driver = machine.resolution().desired.driver.unwrap();
            let names: Vec<_> = driver
                .packages
                .iter()
                .map(|one| one.name.as_str())
                .collect();
            let wanted = format!("linux-modules-nvidia-580-server{infix}-{kernel}");
            assert!(names.contains(&wanted.as_str()), "{names:?}");
            assert_eq!(driver.compiled_as, None, "{kernel}");
        }
    }
}

/// The settings are valid, but another setting or a default of the system makes them ineffective.
#[test]
fn settings_without_effect_cause_a_warning() {
    for (settings, key, why) in [
        (
            "[repositories.nvidia-cuda]\nurl = \"https://mirror.example.com/cuda\"\n",
            "repositories.nvidia-cuda.url` (/etc/gpu-bootstrap/config.toml:2:7)",
            "no configured package comes from this repository (`driver.source` is `distribution`)",
        ),
        (
            "hold = \"none\"\nhold-extra = [\"htop\"]\n",
            "hold-extra`",
            "`hold` is `none`",
        ),
        (
            "[toolkit]\nenabled = false\nversion = \"1.20.0\"\n",
            "toolkit.version`",
            "`toolkit.enabled` is `false`",
        ),
        (
            "[sharing]\nreplicas = 4\n",
            "sharing.replicas`",
            "`sharing.method` is `none`",
        ),
        (
            "[runtime]\nuse = [\"podman\"]\nsource = \"docker\"\n",
            "runtime.source`",
            "no configured runtime has several sources",
        ),
        (
            "[runtime]\nuse = []\nnvidia-default = true\n",
            "runtime.nvidia-default`",
            "no configured runtime has a daemon",
        ),
        (
            "[driver]\nbuild = \"precompiled\"\n[driver.prebuilt]\nsources = [\"/srv/modules\"]\nunsigned = true\n",
            "driver.prebuilt.sources`",
            "the driver modules are not compiled on this machine",
        ),
    ] {
        let machine = Machine::new("ubuntu", "24.04", "x86_64", &[T4]).config(settings);
        let warnings = machine.resolution().warnings;
        let is_listed = |warning: &String| {
            warning.starts_with(&format!("`{key}"))
                && warning.ends_with(&format!("has no effect: {why}"))
        };
        assert!(warnings.iter().any(is_listed), "{settings}: {warnings:?}");
    }
    let effective = "[driver]\nsource = \"nvidia\"\n[repositories.nvidia-cuda]\nurl = \"https://mirror.example.com/cuda\"\n";
    let machine = Machine::new("ubuntu", "24.04", "x86_64", &[T4]).config(effective);
    let warnings = machine.resolution().warnings;
    assert!(
        !warnings.iter().any(|one| one.contains("no effect")),
        "{warnings:?}"
    );
}

//! Messages for invalid configuration: location, key and remedy.

use std::fmt::Write as _;

use gpu_bootstrap::{config::error::ResolveError, error::Report, error::causes, exit::Exit};

use super::machine::{B200, H100, Machine, V100};

fn shown(error: &ResolveError) -> String {
    let mut text = format!("error: failed to {error}\n");
    for cause in causes(error) {
        writeln!(text, "  caused by: {cause}").unwrap();
    }
    if let Some(hint) = error.hint() {
        writeln!(text, "hint: {hint}").unwrap();
    }
    writeln!(
        text,
        "exit {}, reason {}",
        error.exit().code(),
        error.reason()
    )
    .unwrap();
    text
}

/// The same without the parts that all errors of a configuration file have in common.
fn brief(error: &ResolveError) -> String {
    let shown = shown(error).replace("read /etc/gpu-bootstrap/config.toml:", "");
    let shown = shown.trim_start_matches("error: failed to ");
    let (shown, _) = shown.split_once("\nexit ").unwrap();
    format!("  {}: {}", error.reason(), shown.replace('\n', "\n  "))
}

fn refused(machine: &Machine) -> ResolveError {
    match machine.load() {
        Err(error) => error,
        Ok(resolution) => panic!("accepted: {:?}", resolution.desired),
    }
}

#[test]
fn wrong_configuration() {
    let cases = [
        "[driver]\nbrnach = 580\n",
        "[drivr]\nbranch = 580\n",
        "branch = 580\n",
        "[repositories.docker]\nkeyurl = \"https://example.com\"\n",
        "[driver]\n# comment\nbranch = \"five\"\n",
        "driver.version = 580.65\n",
        "driver.cuda = [12.4]\n",
        "driver.cuda = [\"12.4\", \"1.28\"]\n",
        "driver = 580\n",
        "driver.branch.number = 580\n",
        "[driver\nbranch = 580\n",
        "driver.branch = 580\ndriver.branch = 595\n",
        "driver.source = \"nvida\"\n",
        "runtime.use = [\"podmna\"]\n",
        "runtime.use = [\"crio\"]\n",
        "runtime.source = \"dockr\"\n",
        "validation.image = \"https://registry.example.com/x\"\n",
        "validation.timeout = \"0s\"\n",
        "profile = \"debain\"\n",
        "profile = \"/etc/mine.toml\"\n",
        "packages.proxy = \"joe:s3cret@proxy\"\n",
        "packages.lock-timeout = 900\n",
        "preflight.min-memory = \"much\"\n",
        "repositories.docker.fingerprints = [\"0EBFCD88\"]\n",
        "repositories.docker.enabled = true\nrepositories.docker.fingerprints = []\n",
        "repositories.nvidia-container-tookit.url = \"http://127.0.0.1/\"\n",
        "repositories.nvidia-cdua.enabled = false\n",
        "driver.source = nvidia\n",
        "driver.version = 580.95.05\n",
        "driver: 580\n",
        "driver.rollback = \"yes\"\n",
        "runtime.use = \"docker\"\n",
        "driver.flavor = \"opne\"\n",
        "cluster.join = \"kubadm\"\n",
        "repositories.\"../x\".url = \"http://127.0.0.1/\"\n",
        "driver.branch = 580\ndriver.version = \"535.261.03\"\n",
        "cluster.join = \"kubeadm\"\n",
        "cluster.join = \"kubeadm\"\ncluster.version = \"1.33\"\n",
        "cluster.join = \"eks\"\ncluster.taints = [\"a=b:NoSchedule\"]\nruntime.use = []\n",
        "cluster.join = \"kubeadm\"\ncluster.version = \"1.34\"\nruntime.use = [\"docker\"]\n",
        "cluster.join = \"kubeadm\"\ncluster.version = \"1.34\"\ncluster.server = \"https://10.0.0.1:6443\"\n",
        "cluster.join = \"k3s\"\ncluster.server = \"10.0.0.1:6443\"\n",
        "cluster.join = \"k3s\"\ncluster.server = \"https://@10.0.0.1@:6443\"\n",
        "cluster.join = \"rke2\"\ncluster.server = \"https://10.0.0.1:6443\"\n",
        "cluster.join = \"command\"\ncluster.command = [\"join\"]\n",
        "cluster.join = \"command\"\ncluster.command = [\"/join\"]\ncluster.leave-command = [\"leave\"]\n",
        "cluster.join = \"managed\"\ncluster.node-name = \"gpu-1\"\n",
        "cluster.join = \"managed\"\ncluster.taints = [\"a=b:NoSchedule\"]\n",
        "cluster.join = \"eks\"\ncluster.token = \"file:/t\"\n",
        "cluster.join = \"k3s\"\ncluster.server = \"https://a:6443\"\ncluster.token = \"K10.s3cret\"\n",
        "cluster.join = \"k3s\"\ncluster.server = \"https://a:6443\"\ncluster.token = 12345678\n",
        "cluster.join = \"eks\"\nruntime.use = [\"containerd\"]\n",
        "cluster.join = \"eks\"\nruntime.use = []\ncluster.startup-taints = [\"a=b:NoSchedule\"]\n",
        "cluster.join = \"managed\"\ncluster.startup-taints = [\"a=b\"]\n",
        "cluster.join = \"managed\"\ncluster.kubeconfig-file = \"/k\"\ncluster.startup-taints = [\"readiness.k8s.io/gpu:NoSchedule\"]\n",
        "cluster.join = \"eks\"\ncluster.labels = [\"node-role.kubernetes.io/gpu=x\"]\n",
        "cluster.join = \"eks\"\nruntime.use = []\ncluster.timeout = 60\n",
        "sharing.method = \"mps\"\nsharing.replicas = 64\ncluster.mig-strategy = \"mixed\"\n",
        "sharing.method = \"time-slicing\"\nsharing.replicas = 1\nsharing.resources = [\"nvidia.com/mig-1g.10gb\"]\n",
        "sharing.resources = [\"nvidia.com/hostdev\"]\n",
        "sharing.method = \"mps\"\nsharing.replicas = 4\nmig.layout = \"all-balanced\"\n",
        "sharing.method = \"mps\"\nsharing.replicas = 4\nmig.models = [\"10de:2330=1g.10gb*7\"]\n",
        "sharing.method = \"mps\"\nsharing.replicas = 4\nmig.file = \"/etc/mig.yaml\"\n",
    ];
    let mut all = String::new();
    for text in cases {
        let error = refused(&Machine::debian().config(text));
        assert_eq!(error.exit(), Exit::Config, "{text}: {error}");
        let shown = brief(&error);
        assert!(!shown.contains("s3cret"), "{shown}");
        writeln!(all, "{}\n{shown}", text.trim_end().replace('\n', " | ")).unwrap();
    }
    insta::assert_snapshot!(all);
}

#[test]
fn wrong_environment_and_flags() {
    let mut all = String::new();
    for machine in [
        Machine::debian().env("GPU_BOOTSTRAP_DRIVER__BRANHC", "580"),
        Machine::debian().env("GPU_BOOTSTRAP_DRIVER__BRANCH", "new"),
        Machine::debian().env("GPU_BOOTSTRAP_DRIVER", "580"),
        Machine::debian().env("GPU_BOOTSTRAP_DRIVER_BRANCH", "580"),
        Machine::debian().set("runtime=docker"),
        Machine::debian().set("runtime.use="),
        Machine::debian().set("driver.branch"),
        Machine::debian().set("driver.flavour=open"),
        Machine::debian().set("driver.flavor=closed"),
        Machine::debian().set("driver.rollback=maybe"),
        Machine::debian().set("=1"),
        Machine::debian().set("a b=1"),
        Machine::debian().set("packages.proxy=ftp://joe:s3cret@proxy"),
    ] {
        let error = refused(&machine);
        assert_eq!(error.exit(), Exit::Config, "{error}");
        writeln!(all, "---\n{}", shown(&error)).unwrap();
    }
    assert!(!all.contains("s3cret"));
    insta::assert_snapshot!(all);
}

#[test]
fn machines_that_do_not_meet_the_configuration() {
    let mut vgpu = Machine::debian();
    vgpu.facts.gpus[0].vgpu = true;
    let mut unknown_os = Machine::debian();
    unknown_os.facts.os = None;
    let mut unreadable_arch = Machine::debian();
    unreadable_arch.facts.kernel.arch = None;
    let mut no_archive = Machine::debian().config("driver = { source = \"distribution\" }");
    no_archive.files = gpu_bootstrap::host::fake::FakeFiles::new();
    no_archive.files.put(
        "/etc/gpu-bootstrap/config.toml",
        "driver = { source = \"distribution\" }",
    );
    let cases = [
        Machine::new("debian", "12", "x86_64", &[]),
        Machine::new("debian", "11", "x86_64", &[H100]),
        Machine::new("debian", "12", "riscv64", &[H100]),
        Machine::new("gentoo", "2.15", "x86_64", &[H100]),
        Machine::new("debian", "12", "x86_64", &[V100, B200]),
        Machine::debian().set("driver.branch=535"),
        Machine::debian()
            .set("driver.branch=470")
            .set("driver.source=distribution"),
        Machine::new("debian", "12", "x86_64", &[B200]).set("driver.source=distribution"),
        Machine::new("debian", "12", "x86_64", &[V100]).set("driver.branch=595"),
        Machine::new("debian", "12", "x86_64", &[V100]).set("driver.flavor=open"),
        Machine::debian().set("driver.build=precompiled"),
        vgpu,
        unknown_os,
        unreadable_arch,
        no_archive,
    ];
    let mut all = String::new();
    for machine in cases {
        let error = refused(&machine);
        assert_eq!(error.exit(), Exit::Blocked, "{error}");
        assert!(error.hint().is_some(), "{error}");
        writeln!(all, "---\n{}", shown(&error)).unwrap();
    }
    insta::assert_snapshot!(all);
}

/// The machine runs a kernel.org kernel, for which the distribution's driver does not compile.
#[test]
fn unsupported_running_kernel_defers_to_next_boot() {
    let kernel = |text: &str| Some(text.parse().unwrap());
    let machine = |next: &str, installed: &[&str]| {
        let mut machine = Machine::debian().set("driver.source=distribution");
        let found = &mut machine.facts.kernel;
        (found.running, found.next_boot) = (kernel("6.19.3"), kernel(next));
        found.installed = installed.iter().filter_map(|one| kernel(one)).collect();
        machine
    };
    let debian = "6.1.0-44-amd64";
    let driver = machine(debian, &[debian, "6.19.3"])
        .resolution()
        .desired
        .driver;
    let warnings = driver.unwrap().warnings.join("\n");
    assert!(
        warnings.contains("no driver supports the running kernel 6.19.3")
            && warnings.contains("6.1.0-44-amd64, which the next boot starts"),
        "{warnings}"
    );
    // The boot loader would start the same kernel again, so the error suggests a supported kernel.
    let hint = |machine: &Machine| refused(machine).hint().unwrap();
    let there = hint(&machine("6.19.3", &[debian, "6.19.3"]));
    assert!(
        there.contains("boot kernel 6.1.0-44-amd64, which is installed"),
        "{there}"
    );
    let none = hint(&machine("6.19.3", &["6.19.3"]));
    assert!(
        none.contains(
            "install and boot a distribution kernel (`apt-get install linux-image-amd64`)"
        ),
        "{none}"
    );
}

/// Any input gives an error or a resolution, never a panic.
#[test]
fn garbage_does_not_panic() {
    let pieces = [
        "driver",
        ".",
        "branch",
        " = ",
        "580",
        "\"",
        "[",
        "]",
        "\n",
        "repositories",
        "url",
        "{",
        "}",
        ",",
        "\u{0}",
        "é",
        "1e999",
        "99999999999999999999",
        "'''",
        "-",
        "inf",
        "true",
        "2020-01-01",
        "#",
        "\\u0000",
    ];
    // A fixed sequence of numbers, so that a failure can be repeated.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 33).unwrap()
    };
    for _ in 0..3000 {
        let length = next() % 12;
        let text: String = (0..length).map(|_| pieces[next() % pieces.len()]).collect();
        let _answer = Machine::debian().config(&text).load();
        let _answer = Machine::debian().set(&text).load();
        let _answer = Machine::debian()
            .env(&format!("GPU_BOOTSTRAP_{text}"), &text)
            .load();
    }
}

/// All errors are reported at once, so that the administrator can fix the file in one edit.
#[test]
fn all_errors_are_reported_at_once() {
    let told = |text: &str| -> Vec<String> {
        let error = refused(&Machine::debian().config(text).set("driver.brnch=1"));
        (error.parts().iter())
            .map(|part| part.to_string())
            .collect()
    };
    let unread = told(
        "[runtime]\nuse = [\"podmna\"]\n[driver]\nbrnach = 580\nbranch = \"five\"\n\n[drivr]\n",
    );
    let places: Vec<&str> = (unread.iter())
        .map(|text| text.split(": ").next().unwrap())
        .collect();
    let file = "read /etc/gpu-bootstrap/config.toml";
    assert_eq!(
        places,
        [
            &format!("{file}:2:7"),
            &format!("{file}:4:1"),
            &format!("{file}:5:10"),
            &format!("{file}:7:2"),
            "read `--set driver.brnch`",
        ]
    );

    let machine = Machine::debian().config(
        "driver.branch = 535\ndriver.secure-boot.key = \"/k\"\nvalidation.image = \"https://a/x\"\n\
         runtime.use = [\"docker\"]\n[cluster]\njoin = \"kubeadm\"\nserver = \"https://a:6443\"\ncommand = [\"x\"]\n\
         [repositories.mine]\nurl = \"http://127.0.0.1/\"\n",
    );
    let error = refused(&machine);
    assert_eq!(error.exit(), Exit::Config);
    let all: Vec<String> = (error.parts().iter())
        .map(|part| part.to_string())
        .collect();
    for part in [
        "`cluster.version` is also required",
        "`cluster.token` is also required",
        "`cluster.ca-cert-hashes` is also required",
        "`cluster.server` cannot be \"https://a:6443\"",
        "`cluster.command` cannot be",
        "the kubelet needs containerd",
        "`driver.secure-boot.key` cannot be \"/k\": `driver.secure-boot.certificate` is also",
        "driver branch 535",
        "`validation.image` cannot be",
    ] {
        let found = all.iter().filter(|text| text.contains(part)).count();
        assert_eq!(found, 1, "{part} in {all:#?}");
    }
    let mut shown = Vec::new();
    gpu_bootstrap::report::error::write(&mut shown, &error).unwrap();
    let shown = String::from_utf8(shown).unwrap();
    assert_eq!(shown.matches("error: failed to ").count(), all.len());
    assert!(shown.matches("\nhint: ").count() >= 8, "{shown}");
}

#[test]
fn only_signatures_have_a_time() {
    let machine = Machine::debian()
        .set("driver.prebuilt.sources=https://modules.example/gpu")
        .set("driver.prebuilt.unsigned=true")
        .set("driver.prebuilt.not-before=2026-01-31");
    let shown = shown(&refused(&machine));
    assert!(shown.contains("only signatures have a time"), "{shown}");
}

#[test]
fn machine_without_a_compiler_needs_a_source_and_a_dkms_package() {
    let only = "driver.prebuilt.only=true";
    let sources = "driver.prebuilt.sources=[\"/srv/modules\"]";
    let unsigned = "driver.prebuilt.unsigned=true";
    let almalinux = Machine::new("almalinux", "9.6", "x86_64", &[H100]);
    let ubuntu = Machine::new("ubuntu", "24.04", "x86_64", &[H100]).set("driver.build=dkms");
    let publish = "driver.prebuilt.publish=/srv/modules";
    for (machine, why) in [
        (Machine::debian(), "requires `driver.prebuilt.sources`"),
        (
            Machine::debian().set(sources).set(publish),
            "`driver.prebuilt.publish` is also set",
        ),
        (ubuntu.set(sources), "has no DKMS package"),
    ] {
        let shown = shown(&refused(&machine.set(unsigned).set(only)));
        assert!(
            shown.contains("driver.prebuilt.only") && shown.contains(why),
            "{shown}"
        );
    }
    for (machine, replaced) in [
        (Machine::debian(), "nvidia-kernel-open-dkms"),
        (almalinux, "kmod-nvidia-open-dkms"),
    ] {
        let machine = machine.set(sources).set(unsigned).set(only);
        let desired = machine.resolution().desired;
        let driver = desired.driver.expect("a driver");
        assert!(!driver.is_compiled() && desired.headers.is_empty());
        assert_eq!(driver.prebuilt_instead_of.as_deref(), Some(replaced));
        let mut names = driver.packages.iter().map(|spec| &spec.name);
        assert!(!names.any(|name| name.contains("dkms")), "{replaced}");
    }
}

#[test]
fn modules_are_published_with_a_required_signature() {
    let to = "driver.prebuilt.publish=oci://registry.example/gpu";
    let key = "driver.prebuilt.sign-key=/etc/gpu-bootstrap/fleet.key";
    let unsigned = "driver.prebuilt.unsigned=true";
    for (setting, needed) in [
        (to, "requires `driver.prebuilt.sign-key`"),
        (key, "`driver.prebuilt.publish` is also required"),
    ] {
        let error = refused(&Machine::debian().set(setting));
        assert!(shown(&error).contains(needed), "{}", shown(&error));
    }
    for other in [key, unsigned] {
        let driver = (Machine::debian().set(to).set(other).resolution().desired).driver;
        let driver = driver.expect("a driver");
        assert!(driver.prebuilt.is_none(), "nothing is asked");
        let publish = driver.publish.expect("a place");
        assert_eq!(publish.to, "oci://registry.example/gpu");
        assert_eq!(publish.key.is_some(), other == key);
    }
}

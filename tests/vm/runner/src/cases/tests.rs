use super::*;
use std::collections::BTreeSet;

#[test]
fn repository_table_is_valid() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let machines = Machines::load(&here.join("machines.toml")).unwrap();
    let cases = load(&here.join("cases")).unwrap();
    assert!(!cases.is_empty());
    let (repo, configs) = (here.join("../.."), here.join("configs"));
    fit(&cases, &machines, &repo, &configs).unwrap();
    type Break = fn(&mut Case);
    for (wrong, word) in [
        ((|case| case.machine = "h1000".into()) as Break, "h1000"),
        (
            |case| case.config = Some("debian-21.toml".into()),
            "debian-21",
        ),
        (
            |case| case.user_data = Some("cloud-init/none.yaml".into()),
            "cloud-init/none.yaml",
        ),
    ] {
        let mut cases = cases.clone();
        wrong(&mut cases[0]);
        let error = fit(&cases, &machines, &repo, &configs).unwrap_err();
        assert!(format!("{error:#}").contains(word), "{error:#}");
    }
}

#[test]
fn moved_case_uses_configuration_of_machine() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let machines = Machines::load(&here.join("machines.toml")).unwrap();
    let cases = load(&here.join("cases")).unwrap();
    let find = |cases: &[Case]| cases.iter().find(|case| case.name == "main-job").cloned();
    let ubuntu = machines.machine("ubuntu-24-04").unwrap();
    let moved = find(&moved(cases, ubuntu)).unwrap();
    assert_eq!(moved.machine, "ubuntu-24-04");
    assert_eq!(moved.config.as_deref(), Some("ubuntu-24-04.toml"));
}

#[test]
fn case_on_several_machines_is_expanded() {
    let dir = tempfile::tempdir().unwrap();
    let write = |full: &str| {
        let case = format!(
            "[[case]]\nname = 'one'\nabout = ''\nmachine = 'm'\ntier = 'core'\nalso-on = ['n', 'o']\nfull-on = ['{full}']\nrun = []\n"
        );
        fs::write(dir.path().join("a.toml"), case).unwrap();
        load(dir.path())
    };
    let cases = write("o").unwrap();
    let named: Vec<_> = (cases.iter())
        .map(|case| (case.name.as_str(), case.machine.as_str(), case.tier))
        .collect();
    assert_eq!(
        named,
        [
            ("one", "m", Tier::Core),
            ("one-n", "n", Tier::Long),
            ("one-o", "o", Tier::Full)
        ]
    );
    let error = format!("{:#}", write("p").unwrap_err());
    assert!(error.contains("`full-on` contains `p`"), "{error}");
}

/// `make test` runs during development, so it must stay under twenty minutes on two slow CPUs. A new case in the core
/// replaces another one.
#[test]
fn core_tier_stays_within_budget() {
    const ROOTS: usize = 3;
    const SECONDS: u64 = 480;
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let machines = Machines::load(&here.join("machines.toml")).unwrap();
    let cases = load(&here.join("cases")).unwrap();
    let (mut roots, mut seconds) = (BTreeSet::new(), 0);
    for case in cases.iter().filter(|case| case.tier == Tier::Core) {
        let machine = machines.machine(&case.machine).unwrap();
        assert!(case.cpu > 0, "{} was never measured", case.name);
        assert!(case.cluster.is_none(), "{}", case.name);
        assert!(!machine.kind.is_emulated(), "{}", case.name);
        assert!(machine.carried.is_empty(), "{}: its modules", case.name);
        roots.insert(&machine.root);
        seconds += case.cpu;
    }
    assert!(roots.len() <= ROOTS, "{roots:?}");
    assert!(seconds <= SECONDS, "{seconds} s of CPU time");
}

/// CI also runs the cluster tier if a change affects joining, and must stay under 30 minutes.
#[test]
fn cluster_tier_stays_within_budget() {
    const SECONDS: u64 = 300;
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let cases = load(&here.join("cases")).unwrap();
    let cluster: Vec<&Case> = (cases.iter())
        .filter(|case| case.tier == Tier::Cluster)
        .collect();
    for case in &cluster {
        assert!(case.cpu > 0, "{} was never measured", case.name);
    }
    let seconds: u64 = cluster.iter().map(|case| case.cpu).sum();
    assert!(seconds <= SECONDS, "{seconds} s of CPU time");
}

#[test]
fn core_tier_has_no_control_plane() {
    for (tier, fits) in [
        ("core", false),
        ("full", true),
        ("cluster", true),
        ("long", true),
    ] {
        let result = checked(&format!("tier = '{tier}'\ncluster = {{}}\nrun = []"));
        assert_eq!(result.is_ok(), fits, "{tier}");
    }
}

#[test]
fn power_loss_requires_separate_disk() {
    let disk = |text: &str| {
        let head = "name = 'one'\nabout = ''\nmachine = 'm'\n";
        let case: Case = toml::from_str(&format!("{head}{text}")).unwrap();
        case.disk()
    };
    assert_eq!(disk("run = [{ title = 't', run = '' }]"), None);
    assert_eq!(disk("run = [{ title = 't', cut-when = '' }]"), Some(ROOMY));
    assert_eq!(disk("disk-mib = 9\nrun = []"), Some(9));
}

#[test]
fn duplicate_case_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let case = "[[case]]\nname = \"one\"\nabout = \"\"\nmachine = \"m\"\nrun = []\n";
    for name in ["a.toml", "b.toml"] {
        fs::write(dir.path().join(name), case).unwrap();
    }
    let text = load(dir.path()).unwrap_err().to_string();
    assert!(text.contains("b.toml") && text.contains("one"), "{text}");
}

#[test]
fn ignored_step_key_is_rejected() {
    let ignored = |text: &str| {
        let step = toml::from_str::<Step>(&format!("title = 't'\n{text}"));
        step.err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    };
    for text in [
        "run = ''\nexit = 3\nstdout = ['x']\njson = { '/a' = 1 }\nshow = true\ndeadline = 9",
        "run = ''\ndid = 'plan'\nstdout = ['x']",
        "until = ''\nreboots = 1\ndeadline = 9",
        "cut-at-records = ''\nevery = 2\ndeadline = 9",
        "resumed = true\nexit = 3\ndeadline = 9",
        "join = 'u'\nwithin = 9",
        "join = 'u'\nstdout = ['x']\nonly-queries = true",
        "boot = 'plain'",
    ] {
        assert_eq!(ignored(text), "", "{text}");
    }
    for (text, key) in [
        ("until = ''\nstdout = ['x']", "`stdout`"),
        ("boot = 'plain'\njson = { '/a' = 1 }", "`json`"),
        ("boot = 'plain'\ndeadline = 9", "`deadline`"),
        ("run = ''\ndeadline = 9\nwithin = 9", "`deadline`"),
        ("network = 'up'\nwithin = 9", "`within`"),
        ("run = ''\nreboots = 1", "`reboots`"),
        ("cut-when = ''\nevery = 2", "`every`"),
        ("run = ''\ndid = 'plan'\nfails = []", "`fails`"),
        ("unchanged = true\nexit = 1", "`exit`"),
        ("boot = 'plain'\nexti = 1", "`exti`"),
        ("boot = 'plain'\nrun = ''", "one of `run`"),
        ("exit = 1", "one of `run`"),
        (
            "run = ''\nbackground = 'u'\nonly-queries = true",
            "`only-queries`",
        ),
    ] {
        assert!(ignored(text).contains(key), "{text}");
    }
}

#[test]
fn output_needed_by_check_is_kept() {
    let is_read = |text: &str| {
        let step: Step = toml::from_str(&format!("title = 't'\nrun = ''\n{text}")).unwrap();
        step.is_read()
    };
    assert!(!is_read("show = true\nexit = 1"));
    for text in [
        "stderr = ['x']",
        "fails = []",
        "null = ['/a']",
        "did = 'p'",
        "save = 'p'",
    ] {
        assert!(is_read(text), "{text}");
    }
}

#[test]
fn templates_reject_unknown_names() {
    let values = BTreeMap::from([("url", "http://x".to_string())]);
    assert_eq!(fill("a {{url}} b", &values).unwrap(), "a http://x b");
    assert!(fill("{{other}}", &values).is_err());
    assert!(fill("{{url", &values).is_err());
}

fn checked(text: &str) -> Result<()> {
    let head = "name = 'one'\nabout = ''\nmachine = 'm'\n";
    check(&toml::from_str(&format!("{head}{text}")).unwrap())
}

#[test]
fn undefined_plan_or_unit_is_rejected() {
    let save = "{ title = 's', run = '', save = 'plan' }";
    let did = "{ title = 'd', run = '', did = 'plan' }";
    let start = "{ title = 's', run = '', background = 'unit' }";
    let join = "{ title = 'j', join = 'unit' }";
    for (first, second) in [(save, did), (start, join)] {
        checked(&format!("run = [{first}, {second}]")).unwrap();
        assert!(checked(&format!("run = [{second}, {first}]")).is_err());
        assert!(checked(&format!("run = [{second}]")).is_err());
    }
}

#[test]
fn line_without_assertion_is_rejected() {
    for list in ["before", "after", "after-uninstall"] {
        checked(&format!("run = []\n{list} = ['! a']")).unwrap();
        assert!(checked(&format!("run = []\n{list} = [\"! a\\nb\"]")).is_err());
    }
    let run = |script: &str| checked(&format!("run = [{{ title = 't', run = \"{script}\" }}]"));
    run("set -e\\na\\n! b\\n").unwrap();
    run("a || ! b\\nc").unwrap();
    let error = run("set -e\\n! b\\nc").unwrap_err().to_string();
    assert!(error.contains("`! b`"), "{error}");
    assert!(run("for x in y; do\\n    ! b\\ndone").is_err());
}

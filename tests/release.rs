//! `make release`: the check that the binary starts on old systems, the container image, the Helm chart, the signature of the
//! checksums, the links in packed documents, and the scripts of the packages.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use camino::Utf8Path;
use gpu_bootstrap::{
    cli::forms,
    host::digest::sha256,
    journal::{AppliedChange, Record, fold, parse},
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Checks whether this C library version is new enough for this build.
fn symbols(newest: &str) -> Output {
    Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/release/symbols.sh"))
        .arg(env!("CARGO_BIN_EXE_gpu-bootstrap"))
        .arg(newest)
        .output()
        .expect("sh and objdump, which are also needed to compile")
}

#[test]
fn too_new_c_library_symbols_are_rejected() {
    // Older than the first C library of every architecture.
    let refused = symbols("2.2");
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("newer than 2.2:"), "{said}");
    assert!(said.contains("__libc_start_main (GLIBC_2."), "{said}");
}

#[test]
fn c_library_versions_are_compared_as_numbers() {
    // As text, 2.100 is older than 2.17.
    let accepted = symbols("2.100");
    let said = String::from_utf8_lossy(&accepted.stderr);
    assert!(accepted.status.success(), "{said}");
}

/// Writes the checksums of a directory, with a fake minisign. Returns the arguments of minisign.
fn checksums(directory: &Path, key: Option<&str>) -> Option<String> {
    let bin = directory.join("bin");
    let release = directory.join("release");
    fs::create_dir_all(&bin).expect("created");
    fs::create_dir_all(&release).expect("created");
    fs::write(release.join("gpu-bootstrap-1-linux-x86_64"), "binary").expect("written");
    let archive = release.join("gpu-bootstrap-1-linux-x86_64.tar.gz");
    fs::write(archive, "archive").expect("written");
    let minisign = bin.join("minisign");
    let script = "#!/bin/sh\necho \"$*\" | tee ../arguments >SHA256SUMS.minisig\n";
    fs::write(&minisign, script).expect("written");
    fs::set_permissions(&minisign, fs::Permissions::from_mode(0o755)).expect("executable");
    let path = std::env::var("PATH").expect("PATH");
    let written = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/release/checksums.sh"))
        .arg("release")
        .current_dir(directory)
        .env("PATH", format!("{}:{path}", bin.display()))
        .env("RELEASE_KEY", key.unwrap_or_default())
        .output()
        .expect("sh");
    assert!(written.status.success(), "{written:?}");
    let said = String::from_utf8_lossy(&written.stderr);
    assert_eq!(said.contains("NOT SIGNED"), key.is_none(), "{said}");
    let arguments = fs::read_to_string(directory.join("arguments")).ok();
    assert_eq!(release.join("SHA256SUMS.minisig").exists(), key.is_some());
    arguments
}

#[test]
fn checksums_are_signed_if_a_key_is_given() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("key"), "a secret key").expect("written");
    let key = fs::canonicalize(directory.path().join("key")).expect("a path");
    // The path of the key is relative to the working directory of the caller.
    assert_eq!(
        checksums(directory.path(), Some("key")),
        Some(format!(
            "-S -s {} -t gpu-bootstrap release -x SHA256SUMS.minisig -m SHA256SUMS\n",
            key.display()
        ))
    );
    // An unsigned build removes the signature of the earlier one.
    fs::remove_file(directory.path().join("arguments")).expect("removed");
    assert_eq!(checksums(directory.path(), None), None);
}

#[test]
fn checksums_include_the_installer() {
    let directory = tempfile::tempdir().expect("a directory");
    checksums(directory.path(), None);
    let release = directory.path().join("release");
    let read = |name: &str| fs::read_to_string(release.join(name)).expect("a file");
    let sums = read("SHA256SUMS");
    let names: Vec<&str> = (sums.lines())
        .filter_map(|line| line.split_once("  "))
        .map(|(_, name)| name)
        .collect();
    assert_eq!(
        names,
        [
            "gpu-bootstrap-1-linux-x86_64",
            "gpu-bootstrap-1-linux-x86_64.tar.gz",
            "install.sh"
        ]
    );
    // The installer unpacks the archive.
    let archive = sums.lines().nth(1).expect("a line");
    assert!(read("install.sh").contains(&format!("sums='{archive}'\n")));
    let verified = Command::new("sha256sum")
        .args(["--check", "--quiet", "SHA256SUMS"])
        .current_dir(&release)
        .status()
        .expect("sha256sum");
    assert!(verified.success());
}

/// The lines of a template that are not comments.
fn without_comments(text: &str) -> String {
    let lines = text.split_inclusive('\n');
    lines
        .filter(|line| !line.trim_start().starts_with('#'))
        .collect()
}

#[test]
fn templates_of_a_release_contain_url_and_digest() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("program");
    fs::write(&program, "the program\n").expect("written");
    // `printf 'the program\n' | sha256sum`
    let digest = "221dd9a75970db077b86f8a4b7a3ea9645dad8c532e27f8cae0fbd940674fa0f";
    let url = "https://example.com/v1/gpu-bootstrap-1-linux-x86_64";
    for (release_url, is_filled) in [(url, true), ("", false)] {
        let mut count = 0;
        for form in forms::all() {
            let file = Path::new(&form.path).file_name().expect("a name");
            let copy = directory.path().join("templates").join(file);
            fs::create_dir_all(copy.parent().expect("a parent")).expect("created");
            fs::write(&copy, form.template).expect("written");
            let done = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/release/templates.sh"))
                .arg(&program)
                .arg(directory.path().join("templates"))
                .env("GPU_BOOTSTRAP_RELEASE_URL", release_url)
                .output()
                .expect("sh");
            assert!(done.status.success(), "{done:?}");
            let text = fs::read_to_string(&copy).expect("the template");
            if !is_filled || !form.values.iter().any(|value| value.name == "address") {
                assert_eq!(text, form.template, "{}", form.name);
                continue;
            }
            count += 1;
            let expected = without_comments(form.template)
                .replace("@ADDRESS@", url)
                .replace("@SHA-256@", digest);
            assert!(expected.contains(url) && expected.contains(digest));
            assert_eq!(without_comments(&text), expected, "{}", form.name);
        }
        assert_eq!(count > 5, is_filled);
    }
}

/// The URL of the release is part of the binary, so a rebuild needs it.
#[test]
fn rebuild_has_the_url_of_the_release() {
    let repository = Repository::new();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/release/reproduce.sh");
    fs::copy(script, repository.0.path().join("release/reproduce.sh")).expect("copied");
    let build = "#!/bin/sh\nmkdir -p target/release-files\n\
                 echo \"00 $RELEASE_URL\" >target/release-files/SHA256SUMS\n";
    repository.put("release/build.sh", build);
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(repository.0.path().join("release/build.sh"), mode).expect("executable");
    repository.commit();
    let files = tempfile::tempdir().expect("a directory");
    let sums = files.path().join("SHA256SUMS");
    let rebuild = || {
        let done = Command::new(repository.0.path().join("release/reproduce.sh"))
            .arg(&sums)
            .env("RELEASE_URL", "https://example.com/other")
            .output()
            .expect("sh");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (done.status.success(), text(done.stdout), text(done.stderr))
    };
    fs::write(&sums, "00  x\n11  gpu-bootstrap-1.buildinfo\n").expect("written");
    let (is_equal, _, error) = rebuild();
    assert!(!is_equal, "{error}");
    assert!(
        error.contains("gpu-bootstrap-1.buildinfo is missing"),
        "{error}"
    );
    for (line, url) in [
        (
            "Release-Url: https://example.com/v1\n",
            "https://example.com/v1",
        ),
        ("", ""),
    ] {
        let info = format!("Version: 1\n{line}Compiler: rustc\n");
        fs::write(files.path().join("gpu-bootstrap-1.buildinfo"), info).expect("written");
        fs::write(&sums, format!("00  {url}\n11  gpu-bootstrap-1.buildinfo\n")).expect("written");
        let (is_equal, said, error) = rebuild();
        assert!(is_equal, "{error}");
        assert!(said.contains(&format!("equal: {url}\n")), "{said}");
    }
}

/// A complete `release/publisher`.
const PUBLISHER: &str = "MAINTAINER='A <a@example.com>'\n\
                         REPOSITORY='https://example.com/a'\n\
                         PUBLIC_KEY='RW'\n";

/// A repository with one commit.
struct Repository(TempDir);

impl Repository {
    fn new() -> Self {
        let one = Self(tempfile::tempdir().expect("a directory"));
        let release = one.0.path().join("release");
        fs::create_dir(&release).expect("created");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/release/tag.sh");
        fs::copy(script, release.join("tag.sh")).expect("copied");
        one.put("Cargo.toml", "[workspace.package]\nversion = \"1.2.3\"\n");
        one.put("CHANGELOG.md", "# Changelog\n\n## 1.2.3\n");
        one.put("release/publisher", PUBLISHER);
        one.git("init --quiet");
        one.commit();
        one
    }

    fn put(&self, name: &str, content: &str) {
        fs::write(self.0.path().join(name), content).expect("written");
    }

    fn git(&self, arguments: &str) {
        let done = Command::new("git")
            .args(["-c", "user.name=a", "-c", "user.email=a@example.com"])
            .args(arguments.split(' '))
            .current_dir(&self.0)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .output()
            .expect("git");
        assert!(done.status.success(), "{done:?}");
    }

    fn commit(&self) {
        self.git("add --all");
        self.git("commit --quiet --message text");
    }

    /// The result of `tag.sh`, with its output.
    fn check(&self, tag: Option<&str>) -> Result<String, String> {
        let done = self.run(tag, "");
        match done.status.success() {
            true => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&done.stderr).into_owned()),
        }
    }

    fn run(&self, tag: Option<&str>, release_url: &str) -> Output {
        Command::new(self.0.path().join("release/tag.sh"))
            .args(tag)
            .env("RELEASE_URL", release_url)
            .output()
            .expect("sh")
    }

    fn assert_refused(&self, tag: Option<&str>, reason: &str) {
        let refused = self.check(tag);
        assert!(
            refused.as_ref().is_err_and(|error| error.contains(reason)),
            "{refused:?}"
        );
    }
}

#[test]
fn released_commit_has_the_tag_of_its_version() {
    let repository = Repository::new();
    let untagged = repository.check(None).expect("a build");
    assert!(untagged.contains("not a release"), "{untagged}");
    repository.assert_refused(Some("v1.2.3"), "not at this commit");
    repository.git("tag v1.2.3");
    for tag in [None, Some("v1.2.3")] {
        assert_eq!(
            repository.check(tag).as_deref(),
            Ok("tag.sh: release v1.2.3\n")
        );
    }
    repository.assert_refused(Some("v1.2.4"), "Cargo.toml contains version 1.2.3");
    repository.put("new", "");
    repository.assert_refused(None, "differ from the commit");
    repository.commit();
    repository.assert_refused(Some("v1.2.3"), "not at this commit");
    repository.git("tag v1.2.4");
    repository.assert_refused(None, "Cargo.toml contains version 1.2.3");
    let text = "[workspace.package]\nversion = \"1.2.5\"\n";
    repository.put("Cargo.toml", text);
    repository.commit();
    repository.git("tag v1.2.5");
    repository.assert_refused(None, "no line `## 1.2.5`");
}

#[test]
fn placeholders_are_not_published() {
    let repository = Repository::new();
    let url = "https://example.com/v1";
    let complete = repository.run(None, url);
    assert!(complete.status.success(), "{complete:?}");
    assert_eq!(complete.stderr, b"");
    for (line, placeholder) in [
        (
            "MAINTAINER='A <a@example.com>'",
            "MAINTAINER='A <a@a.invalid>'",
        ),
        ("REPOSITORY='https://example.com/a'", "REPOSITORY=''"),
        ("PUBLIC_KEY='RW'", "PUBLIC_KEY=''"),
    ] {
        let text = PUBLISHER.replace(line, placeholder);
        assert_ne!(text, PUBLISHER);
        repository.put("release/publisher", &text);
        let name = line.split('=').next().expect("a name");
        let reason = format!("has no value or a placeholder: {name}\n");
        for (release_url, is_refused) in [("", false), (url, true)] {
            let done = repository.run(None, release_url);
            assert_eq!(done.status.success(), !is_refused, "{done:?}");
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(said.ends_with(&reason), "{said}");
            assert_eq!(said.contains("WARNING"), !is_refused, "{said}");
        }
        repository.assert_refused(Some("v1.2.3"), &reason);
    }
}

/// Packs an archive and the packages with a fake binary. Returns the files of the archive and the documents of the packages. The
/// input of nfpm is `documents.yaml`.
fn packed(directory: &Path) -> [PathBuf; 2] {
    let bin = directory.join("bin");
    fs::create_dir(&bin).expect("created");
    let program = directory.join("program");
    let documents = directory.join("documents");
    // `dependencies.py` needs the sources of all crates.
    for (path, commands) in [
        (program.clone(), ""),
        (bin.join("python3"), ""),
        (
            bin.join("nfpm"),
            "rm -rf \"$DOCUMENTS\"\ncp -r doc \"$DOCUMENTS\"\ncp nfpm.yaml \"$DOCUMENTS.yaml\"\n",
        ),
    ] {
        fs::write(&path, format!("#!/bin/sh\n{commands}")).expect("written");
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&path, mode).expect("executable");
    }
    let name = "gpu-bootstrap-1.2.3-linux-x86_64";
    let archive = directory.join(format!("{name}.tar.gz"));
    let path = std::env::var("PATH").expect("PATH");
    for (script, arguments) in [
        ("archive.sh", vec![&program, &archive]),
        ("package.sh", vec![&archive]),
    ] {
        let done = Command::new(format!("{}/release/{script}", env!("CARGO_MANIFEST_DIR")))
            .args(arguments)
            .env("PATH", format!("{}:{path}", bin.display()))
            .env("DOCUMENTS", &documents)
            .env("SOURCE_DATE_EPOCH", "1700000000")
            .output()
            .expect("sh");
        assert!(done.status.success(), "{done:?}");
    }
    let to = directory.to_str().expect("UTF-8");
    tar(&["-xzf", archive.to_str().expect("UTF-8"), "-C", to]);
    [directory.join(name), documents]
}

/// The Markdown files in a directory and its subdirectories.
fn markdown(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(markdown(&path));
        } else if path.extension().is_some_and(|one| one == "md") {
            found.push(path);
        }
    }
    found
}

/// The relative links in a Markdown file, without anchors.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1);
    targets
        .filter_map(|rest| rest.split([')', '#']).next())
        .filter(|link| !link.is_empty() && !link.contains("://"))
        .collect()
}

/// Users have no repository. `archive.sh` has the only list of packed files.
#[test]
fn links_in_packed_documents_point_to_packed_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let root = fs::canonicalize(directory.path()).expect("a path");
    let mut dead = Vec::new();
    for tree in packed(&root) {
        let documents = markdown(&tree);
        assert!(documents.len() > 25, "{documents:?}");
        for document in documents {
            let text = fs::read_to_string(&document).expect("UTF-8");
            let parent = document.parent().expect("a parent");
            for link in links(&text) {
                let target = fs::canonicalize(parent.join(link));
                if !target.is_ok_and(|target| target.starts_with(&tree)) {
                    dead.push(format!("{}: {link}", document.display()));
                }
            }
        }
    }
    assert!(dead.is_empty(), "{dead:#?}");
}

#[test]
fn packages_have_the_maintainer_of_the_publisher() {
    let publisher = include_str!("../release/publisher");
    let (_, maintainer) = publisher.split_once("\nMAINTAINER='").expect("a line");
    let (maintainer, _) = maintainer.split_once('\'').expect("the end");
    let directory = tempfile::tempdir().expect("a directory");
    packed(directory.path());
    let text = fs::read_to_string(directory.path().join("documents.yaml")).expect("a file");
    let package: Value = serde_saphyr::from_str(&text).expect("YAML");
    assert_eq!(package["maintainer"], maintainer);
}

/// A system directory for the package scripts, like with `dpkg --root`.
struct System(TempDir);

impl System {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("created");
        fs::write(path, content).expect("written");
    }

    /// Runs a script of the packages with the argument of dpkg or rpm, and returns its output.
    fn run(&self, script: &str, argument: &str) -> String {
        let path = std::env::var("PATH").expect("PATH");
        let output = Command::new("sh")
            .arg(format!(
                "{}/release/packages/{script}.sh",
                env!("CARGO_MANIFEST_DIR")
            ))
            .arg(argument)
            .env("DPKG_ROOT", self.0.path())
            .env("PATH", format!("{}:{path}", self.at("bin").display()))
            .env("ROOT", self.0.path())
            .output()
            .expect("sh");
        // A failed script would prevent the removal of the package.
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }
}

const JOURNAL: &str = "var/lib/gpu-bootstrap/journal.jsonl";

/// The lines with which `postrm` lists these changes.
fn listed(applied: &[AppliedChange]) -> Vec<String> {
    let mut lines: Vec<String> = (applied.iter())
        .map(|one| {
            let steps: Vec<&str> = one.steps.iter().map(|step| step.as_str()).collect();
            let change = serde_json::to_value(&one.change).expect("JSON");
            let kind = change["kind"].as_str().expect("a kind").to_owned();
            format!("  {}: {kind}", steps.join(", "))
        })
        .collect();
    lines.sort();
    lines.dedup();
    lines
}

/// All sample journals.
fn samples() -> Vec<(String, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/journals");
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|one| one == "jsonl") {
            let content = fs::read(&path).expect("a sample");
            found.push((path.display().to_string(), content));
        }
    }
    assert!(found.len() >= 8);
    found
}

#[test]
fn purge_keeps_the_state_while_changes_are_applied() {
    let mut torn = 0;
    for (name, content) in samples() {
        let history = parse(Utf8Path::new(&name), &content);
        let applied = fold(&history.expect("a valid sample").lines).applied;
        let system = System::new();
        system.put(JOURNAL, &content);
        let said = system.run("postrm", "remove");
        system.run("postrm", "purge");
        if said.contains("journal.jsonl is damaged") {
            torn += 1;
            assert!(system.at(JOURNAL).exists(), "{name}");
            continue;
        }
        let mut lines: Vec<&str> = said.lines().filter(|line| line.starts_with("  ")).collect();
        lines.sort_unstable();
        assert_eq!(lines, listed(&applied), "{name}");
        assert_eq!(system.at(JOURNAL).exists(), !applied.is_empty(), "{name}");
    }
    // The last line of one sample is incomplete. The script does not repair it.
    assert_eq!(torn, 1);
}

#[test]
fn purge_removes_the_state_after_all_changes_are_reverted() {
    for (name, mut content) in samples() {
        if content.last() != Some(&b'\n') {
            content.push(b'\n');
        }
        let Ok(history) = parse(Utf8Path::new(&name), &content) else {
            // The incomplete line is an error if it is not the last one.
            continue;
        };
        let mut seq = history.lines.last().expect("a line").seq;
        for one in fold(&history.lines).applied {
            seq += 1;
            let record = Record::Reverted {
                intent: one.intent,
                what: String::new(),
            };
            let line = json!({
                "schema": 2, "seq": seq, "at": "2026-01-01T00:00:00Z", "run": "r", "record": record,
            });
            content.extend(format!("{line}\n").bytes());
        }
        let system = System::new();
        system.put(JOURNAL, &content);
        system.run("postrm", "remove");
        system.run("postrm", "0");
        assert!(system.at(JOURNAL).exists(), "{name}");
        assert_eq!(system.run("postrm", "purge"), "", "{name}");
        assert!(!system.at("var/lib/gpu-bootstrap").exists(), "{name}");
    }
}

#[test]
fn purge_keeps_the_state_if_the_journal_is_lost_or_damaged() {
    let complete = include_str!("journals/complete.jsonl");
    let reverted = complete.replace("\"kind\":\"intent\"", "\"kind\":\"other\"");
    for (files, reason) in [
        (&[("receipt.json", "{}")][..], "contains no journal"),
        (
            &[("journal.jsonl", ""), ("backups/1", "")],
            "contains no journal",
        ),
        (&[("journal.jsonl.damaged", "")], "was set aside"),
        (&[("journal.jsonl", "\0\0\n")], "is damaged"),
        (
            &[("journal.jsonl", &reverted[..reverted.len() - 3])],
            "is damaged",
        ),
    ] {
        let system = System::new();
        for (name, content) in files {
            system.put(&format!("var/lib/gpu-bootstrap/{name}"), content);
        }
        let said = system.run("postrm", "purge");
        assert!(said.contains(reason), "{said}");
        for (name, _) in files {
            assert!(system.at("var/lib/gpu-bootstrap").join(name).exists());
        }
    }
    // Without intents, this journal contains no change.
    let system = System::new();
    system.put(JOURNAL, reverted);
    assert_eq!(system.run("postrm", "purge"), "");
    assert!(!system.at(JOURNAL).exists());
}

#[test]
fn removal_lists_what_stays_and_upgrades_do_not() {
    let system = System::new();
    system.put(JOURNAL, include_str!("journals/complete.jsonl"));
    system.put("etc/gpu-bootstrap/config.toml", "");
    for argument in ["remove", "0"] {
        let said = system.run("postrm", argument);
        assert!(
            said.contains("\n  packages.hold: hold-packages\n"),
            "{said}"
        );
        assert!(
            said.contains("`gpu-bootstrap uninstall` needs it"),
            "{said}"
        );
        assert!(said.contains("etc/gpu-bootstrap stay"), "{said}");
    }
    let resume = "etc/systemd/system/gpu-bootstrap-resume.service";
    let waits = "a run waits for a reboot, and continues only if the package is installed by then";
    for (program, is_ours) in [("/usr/local/bin", false), ("/usr/bin", true)] {
        let line = format!("[Service]\nExecStart={program}/gpu-bootstrap install --resume\n");
        system.put(resume, line);
        assert_eq!(system.run("postrm", "remove").contains(waits), is_ours);
        assert!(!system.run("postrm", "purge").contains(waits));
    }
    for argument in [
        "upgrade",
        "1",
        "failed-upgrade",
        "abort-install",
        "disappear",
    ] {
        assert_eq!(system.run("postrm", argument), "");
    }
    assert!(system.at(JOURNAL).exists());
}

#[test]
fn removal_stops_only_the_timer_of_the_package() {
    let unit = "etc/systemd/system/gpu-bootstrap-check.service";
    for (program, argument, is_disabled) in [
        ("/usr/bin/gpu-bootstrap", "remove", true),
        ("/usr/bin/gpu-bootstrap", "0", true),
        ("/usr/bin/gpu-bootstrap", "upgrade", false),
        ("/usr/bin/gpu-bootstrap", "1", false),
        ("/usr/bin/gpu-bootstrap", "deconfigure", false),
        ("/usr/local/bin/gpu-bootstrap", "remove", false),
    ] {
        let system = System::new();
        system.put(
            "bin/systemctl",
            "#!/bin/sh\necho \"$*\" >>\"$ROOT/calls\"\n",
        );
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(system.at("bin/systemctl"), mode).expect("executable");
        system.put(
            unit,
            format!("[Service]\nExecStart={program} check --as-installed\n"),
        );
        system.run("prerm", argument);
        let calls = fs::read_to_string(system.at("calls")).unwrap_or_default();
        let expected = format!(
            "--root={} disable gpu-bootstrap-check.timer\n",
            system.0.path().display()
        );
        let expected = if is_disabled { expected } else { String::new() };
        assert_eq!(calls, expected, "{program} {argument}");
    }
}

#[test]
fn removal_stops_the_timer_of_upgrades() {
    let system = System::new();
    system.put(
        "bin/systemctl",
        "#!/bin/sh\necho \"$*\" >>\"$ROOT/calls\"\n",
    );
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(system.at("bin/systemctl"), mode).expect("executable");
    let unit = "[Service]\nExecStart=/usr/bin/gpu-bootstrap upgrade --as-installed --reboot\n";
    system.put("etc/systemd/system/gpu-bootstrap-upgrade.service", unit);
    system.run("prerm", "remove");
    let calls = fs::read_to_string(system.at("calls")).unwrap_or_default();
    assert!(
        calls.ends_with(" disable gpu-bootstrap-upgrade.timer\n"),
        "{calls}"
    );
}

#[test]
fn removal_succeeds_without_systemd() {
    let system = System::new();
    let unit = "[Service]\nExecStart=/usr/bin/gpu-bootstrap check\n";
    system.put("etc/systemd/system/gpu-bootstrap-check.service", unit);
    system.put("bin/systemctl", "#!/bin/sh\nexit 1\n");
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(system.at("bin/systemctl"), mode).expect("executable");
    assert_eq!(system.run("prerm", "remove"), "");
}

#[test]
fn installation_reports_another_copy_and_a_disabled_timer() {
    let system = System::new();
    for argument in ["configure", "1", "2"] {
        assert_eq!(system.run("postinst", argument), "");
    }
    system.put("usr/local/bin/gpu-bootstrap", "");
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(system.at("usr/local/bin/gpu-bootstrap"), mode).expect("executable");
    system.put("etc/systemd/system/gpu-bootstrap-check.timer", "");
    let said = system.run("postinst", "configure");
    assert!(said.contains("rm /usr/local/bin/gpu-bootstrap"), "{said}");
    assert!(
        said.contains("gpu-bootstrap-check.timer is disabled"),
        "{said}"
    );
    assert_eq!(system.run("postinst", "abort-upgrade"), "");
    let wants = "etc/systemd/system/timers.target.wants/gpu-bootstrap-check.timer";
    system.put(wants, "");
    let said = system.run("postinst", "2");
    assert!(!said.contains("is disabled"), "{said}");
}

/// Writes the image of a release with a program for two architectures. Returns its path, and the digest that was printed.
fn image(directory: &Path) -> (PathBuf, String) {
    let mut arguments = vec!["1.2.3".to_owned(), "0123abc".to_owned()];
    let output = directory.join("image.tar");
    arguments.push(output.display().to_string());
    for architecture in ["x86_64", "aarch64"] {
        let files = directory.join(architecture);
        fs::create_dir_all(&files).expect("created");
        fs::write(files.join("gpu-bootstrap"), architecture).expect("written");
        fs::write(files.join("LICENSE-MIT"), "license").expect("written");
        arguments.push(format!("{architecture}={}", files.display()));
    }
    let written = Command::new("python3")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/release/image.py"))
        .args(arguments)
        .env("SOURCE_DATE_EPOCH", "1700000000")
        .output()
        .expect("python3");
    assert!(written.status.success(), "{written:?}");
    let printed = String::from_utf8(written.stdout).expect("UTF-8");
    (output, printed.trim_end().to_owned())
}

/// Runs `tar` and returns its output.
fn tar(arguments: &[&str]) -> Vec<u8> {
    let done = Command::new("tar").args(arguments).output().expect("tar");
    assert!(done.status.success(), "{done:?}");
    done.stdout
}

/// An unpacked image layout.
struct Layout(TempDir);

impl Layout {
    fn unpack(archive: &Path) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let to = directory.path().to_str().expect("UTF-8");
        tar(&["-xf", archive.to_str().expect("UTF-8"), "-C", to]);
        Self(directory)
    }

    fn path(&self, descriptor: &Value) -> PathBuf {
        let digest = descriptor["digest"].as_str().expect("a digest");
        self.0
            .path()
            .join("blobs")
            .join(digest.replacen(':', "/", 1))
    }

    /// The content of a descriptor, whose digest and size must match.
    fn read(&self, descriptor: &Value) -> Vec<u8> {
        let content = fs::read(self.path(descriptor)).expect("a blob");
        let digest = format!("sha256:{}", sha256(&content));
        assert_eq!(descriptor["digest"], digest.as_str());
        assert_eq!(descriptor["size"], content.len());
        content
    }

    fn json(&self, descriptor: &Value) -> Value {
        serde_json::from_slice(&self.read(descriptor)).expect("JSON")
    }
}

#[test]
fn image_has_both_architectures_and_valid_digests() {
    let directory = tempfile::tempdir().expect("a directory");
    let (archive, digest) = image(directory.path());
    let layout = Layout::unpack(&archive);
    let version = fs::read(layout.0.path().join("oci-layout")).expect("a file");
    let version: Value = serde_json::from_slice(&version).expect("JSON");
    assert_eq!(version, json!({"imageLayoutVersion": "1.0.0"}));
    let top = fs::read(layout.0.path().join("index.json")).expect("a file");
    let top: Value = serde_json::from_slice(&top).expect("JSON");
    let [named] = &top["manifests"].as_array().expect("a list")[..] else {
        panic!("{top}");
    };
    assert_eq!(named["digest"], digest.as_str());
    let name = &named["annotations"]["org.opencontainers.image.ref.name"];
    assert_eq!(name, "1.2.3");
    let index = layout.json(named);
    let manifests = index["manifests"].as_array().expect("a list");
    assert_eq!(manifests.len(), 2);
    for (descriptor, (architecture, program)) in manifests
        .iter()
        .zip([("amd64", "x86_64"), ("arm64", "aarch64")])
    {
        let platform = json!({"architecture": architecture, "os": "linux"});
        assert_eq!(descriptor["platform"], platform);
        let manifest = layout.json(descriptor);
        let config = layout.json(&manifest["config"]);
        assert_eq!(config["architecture"], architecture);
        assert_eq!(config["created"], "2023-11-14T22:13:20Z");
        assert_eq!(
            config["config"]["Labels"]["org.opencontainers.image.revision"],
            "0123abc"
        );
        let layer = &manifest["layers"][0];
        layout.read(layer);
        let path = layout.path(layer);
        let path = path.to_str().expect("UTF-8");
        let unpacked = Command::new("gzip")
            .args(["-dc", path])
            .output()
            .expect("gzip");
        let diff = format!("sha256:{}", sha256(&unpacked.stdout));
        assert_eq!(config["rootfs"]["diff_ids"], json!([diff]));
        let content = tar(&["-xzOf", path, "opt/gpu-bootstrap"]);
        assert_eq!(content, program.as_bytes());
        let listed = tar(&["--numeric-owner", "-tvzf", path]);
        let listed = String::from_utf8(listed).expect("UTF-8");
        for needed in [
            "bin -> host/usr/bin",
            "lib64 -> host/usr/lib64",
            "licenses/LICENSE-MIT",
        ] {
            assert!(listed.contains(needed), "{listed}");
        }
        assert!(listed.lines().all(|line| line.contains(" 0/0 ")));
        let is_program = |line: &&str| line.ends_with("opt/gpu-bootstrap");
        let program = listed.lines().find(is_program).expect("the program");
        assert!(program.starts_with("-rwxr-xr-x "), "{program}");
    }
}

#[test]
fn image_and_chart_are_reproducible() {
    let build = |umask: &str| {
        let directory = tempfile::tempdir().expect("a directory");
        let (archive, digest) = image(directory.path());
        let chart = directory.path().join("chart.tgz");
        let written = Command::new("sh")
            .arg("-c")
            .arg("umask \"$1\"; shift; exec \"$@\"")
            .args(["sh", umask])
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/release/chart.sh"))
            .args(["1.2.3", &digest])
            .arg(&chart)
            .env("SOURCE_DATE_EPOCH", "1700000000")
            .status()
            .expect("sh");
        assert!(written.success());
        let values = tar(&[
            "-xzOf",
            chart.to_str().expect("UTF-8"),
            "gpu-bootstrap/values.yaml",
        ]);
        let values: Value =
            serde_saphyr::from_str(&String::from_utf8(values).expect("UTF-8")).expect("YAML");
        assert_eq!(values["image"]["digest"], digest.as_str());
        [archive, chart].map(|path| sha256(&fs::read(path).expect("a file")))
    };
    assert_eq!(build("022"), build("077"));
}

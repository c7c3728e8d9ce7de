//! Every release, architecture, source and GPU is resolved, or rejected with a reason.

use std::fmt::Write as _;

use gpu_bootstrap::{
    config::{
        desired::{Manager, Purpose},
        profile::{Profile, built_in_names},
    },
    error::Report as _,
    exit::Exit,
    model::pattern,
};

use super::machine::{B200, H100, MATRIX, Machine, T4, V100};

const GPUS: [(&str, &str); 4] = [("T4", T4), ("V100", V100), ("H100", H100), ("B200", B200)];

#[test]
fn every_combination_has_an_answer() {
    let mut table = String::new();
    for name in built_in_names() {
        let profile = Profile::built_in(name).unwrap();
        for release in &profile.release {
            for arch in profile.architecture.keys() {
                for source in ["distribution", "nvidia"] {
                    for (gpu, id) in GPUS {
                        let answer = answer(name, &release.version_id, arch, source, id);
                        let release = &release.version_id;
                        writeln!(table, "{name} {release} {arch} {source} {gpu}: {answer}")
                            .unwrap();
                    }
                }
            }
        }
    }
    insta::assert_snapshot!(table);
}

fn answer(os: &str, version: &str, arch: &str, source: &str, gpu: &str) -> String {
    let machine =
        Machine::new(os, version, arch, &[gpu]).config(&format!("driver.source = \"{source}\""));
    match machine.load() {
        Ok(resolution) => {
            let desired = resolution.desired;
            let driver = desired.driver.as_ref().expect("a driver for a GPU");
            let named = |text: &str| !text.is_empty() && !text.contains(['{', '}', ' ']);
            for (purpose, packages) in desired.package_groups() {
                for package in packages {
                    assert!(named(&package.name), "{package:?}");
                    let held = (desired.hold.patterns.iter())
                        .any(|one| pattern::matches(one, &package.name));
                    assert!(
                        held || matches!(purpose, Purpose::Headers | Purpose::Holds),
                        "{package:?} is not held"
                    );
                }
            }
            for repository in &desired.repositories {
                assert!(named(&repository.url), "{repository:?}");
                let trusted = repository.keyring.is_some()
                    || (repository.key_url.is_some() && !repository.fingerprints.is_empty());
                assert!(trusted, "{repository:?}");
                for text in repository.key_url.iter().chain(&repository.suites) {
                    assert!(named(text), "{repository:?}");
                }
                let has_suite = !repository.suites.is_empty();
                assert!(has_suite || desired.packages.manager == Manager::Dnf);
            }
            assert_eq!(desired.headers.is_empty(), driver.compiled_as.is_none());
            assert!(!driver.reasons.is_empty() && !desired.hold.patterns.is_empty());
            let packages: Vec<&str> = driver
                .packages
                .iter()
                .map(|package| package.name.as_str())
                .collect();
            let repositories: Vec<&str> = desired
                .repositories
                .iter()
                .map(|r| r.name.as_str())
                .collect();
            format!(
                "{} {}; {}; from {}",
                driver.branch,
                driver.flavor,
                packages.join(" "),
                repositories.join(", ")
            )
        }
        Err(error) => {
            let expected = [Exit::Blocked, Exit::Config].contains(&error.exit());
            assert!(expected, "{error}");
            assert!(error.hint().is_some(), "{error} has no hint");
            format!("refused ({}): {error}", error.reason())
        }
    }
}

/// The ids above belong to the GPUs listed there.
#[test]
fn gpu_ids_match_their_names() {
    for (name, id) in GPUS {
        let row = MATRIX.gpu(id.parse().unwrap(), None);
        let row = row.unwrap_or_else(|| panic!("{id} has no row"));
        assert!(row.name.contains(name), "{id} is {}", row.name);
    }
}

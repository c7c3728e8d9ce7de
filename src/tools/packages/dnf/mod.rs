//! `dnf` on top of `rpm`: AlmaLinux, Rocky Linux, RHEL, Oracle Linux, Amazon Linux 2023.

pub(in crate::tools) mod agents;
pub(in crate::tools) mod commands;
pub(in crate::tools) mod database;
mod exclusions;
mod faults;
mod generation;
mod history;
mod interruption;
pub(in crate::tools) mod offers;
mod progress;
mod repository;
mod sizes;
mod sources;
mod streams;
mod transaction;
mod versionlock;

use std::{cmp::Ordering, collections::BTreeSet};

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};
use rpm_version::rpm_evr_compare;

use super::{
    Action, ArchiveError, AvailablePackage, Backend, Commands, Contents, DatabaseError, Estimate,
    Exclusion, Fault, Further, HalfDone, HoldList, Mark, Package, Removals, Settings, SourceEntry,
    SourceFailure, SourceIssue, Streams, TransactionRequest,
};
use crate::{
    host::{Cmd, FilesError, Output, Query, ReadFiles, Reader},
    model::{packages::Repository, pattern},
};

/// The possible paths of the rpm database, which depend on its version.
const DATABASES: [&str; 2] = ["/usr/lib/sysimage/rpm", "/var/lib/rpm"];

/// The directory of downloaded metadata and packages, with a subdirectory for each repository.
const CACHE: &str = "/var/cache/dnf";

/// The dnf backend.
#[derive(Debug)]
pub struct Dnf;

#[async_trait]
impl Backend for Dnf {
    fn name(&self) -> &'static str {
        "dnf"
    }

    fn is_used_on(&self, files: &dyn ReadFiles) -> Result<bool, FilesError> {
        for directory in DATABASES {
            if files.exists(Utf8Path::new(directory))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn database(&self, host: Reader<'_>) -> Result<Option<Vec<Package>>, DatabaseError> {
        if !self.is_used_on(host.files())? {
            return Ok(None);
        }
        let query = database::all();
        let output = host.query(&query).await?.success(query.cmd())?;
        let mut packages = database::parse(&output.stdout);
        versionlock::mark_held(host.files(), &mut packages)?;
        Ok(Some(packages))
    }

    fn database_program(&self) -> Option<&'static str> {
        Some("rpm")
    }

    fn database_path(&self) -> &'static str {
        DATABASES[1]
    }

    fn interrupted(&self, files: &dyn ReadFiles) -> Result<Option<&'static str>, FilesError> {
        interruption::interrupted(files)
    }

    fn half_done(
        &self,
        files: &dyn ReadFiles,
        database: &[Package],
    ) -> Result<HalfDone, FilesError> {
        let record = files.read_text(&interruption::failed_scripts_record())?;
        let failed = interruption::with_failed_scripts(&record.unwrap_or_default(), database);
        let packages: Vec<Package> = (database.iter())
            .filter(|package| package.needs_repair())
            .cloned()
            .chain(failed)
            .collect();
        let interrupted = match packages.is_empty() {
            true => self.interrupted(files)?,
            false => None,
        };
        Ok(HalfDone {
            packages,
            interrupted,
        })
    }

    fn failed_scripts_record(&self) -> Option<Utf8PathBuf> {
        Some(interruption::failed_scripts_record())
    }

    fn of_installed(&self, record: &str, installed: &[Package]) -> String {
        interruption::of_installed(record, installed)
    }

    async fn automatic(
        &self,
        host: Reader<'_>,
        packages: &[Package],
    ) -> Result<BTreeSet<String>, DatabaseError> {
        let query = database::asked_for();
        let output = host.query(&query).await?.success(query.cmd())?;
        let asked_for = database::parse_asked_for(&output.stdout);
        let key = |package: &Package| (package.name.clone(), package.architecture.clone());
        Ok((packages.iter())
            .filter(|package| !asked_for.contains(&key(package)))
            .map(|package| package.id.clone())
            .collect())
    }

    async fn owned_below(
        &self,
        host: Reader<'_>,
        directory: &Utf8Path,
    ) -> Result<BTreeSet<Utf8PathBuf>, DatabaseError> {
        let query = database::owned();
        let output = host.query(&query).await?.success(query.cmd())?;
        Ok((output.stdout.lines().map(Utf8Path::new))
            .filter(|path| path.starts_with(directory))
            .map(Utf8Path::to_owned)
            .collect())
    }

    async fn owned_by(
        &self,
        host: Reader<'_>,
        packages: &BTreeSet<String>,
    ) -> Result<BTreeSet<Utf8PathBuf>, DatabaseError> {
        if packages.is_empty() {
            return Ok(BTreeSet::new());
        }
        let names: Vec<&str> = packages.iter().map(String::as_str).collect();
        // The exit status only shows whether all packages are installed.
        let output = host.query(&database::owned_by(&names)).await?;
        let paths = output.stdout.lines().filter(|line| line.starts_with('/'));
        Ok(paths.map(Utf8PathBuf::from).collect())
    }

    async fn keys(&self, host: Reader<'_>) -> Result<Option<BTreeSet<String>>, DatabaseError> {
        let query = database::keys();
        let output = host.query(&query).await?.success(query.cmd())?;
        Ok(Some(database::parse_keys(&output.stdout)))
    }

    fn forget_keys(&self, keys: &[String]) -> Option<Cmd> {
        Some(database::forget(keys))
    }

    /// Compares versions like rpm: the epoch comes first, and a missing epoch equals 0.
    fn compare(&self, a: &str, b: &str) -> Ordering {
        rpm_evr_compare(a, b)
    }

    /// A pattern without an epoch matches any epoch, because vendors write `580.95.05` for `3:580.95.05-1`.
    fn matches(&self, wanted: &str, version: &str) -> bool {
        let bare = match version.split_once(':') {
            Some((_, bare)) if !wanted.contains(':') => bare,
            _ => version,
        };
        pattern::matches(wanted, bare)
    }

    fn downloads(&self) -> Option<&'static Utf8Path> {
        Some(Utf8Path::new(CACHE))
    }

    fn locks(&self) -> &'static [&'static str] {
        &generation::LOCKS
    }

    fn source_issues(&self, files: &dyn ReadFiles) -> Result<Vec<SourceIssue>, FilesError> {
        sources::issues(files)
    }

    fn entries(&self, files: &dyn ReadFiles) -> Result<Vec<SourceEntry>, FilesError> {
        sources::read(files)
    }

    fn further(
        &self,
        entries: &[SourceEntry],
        _suites: &[String],
        components: &[String],
    ) -> Result<Option<Further>, ArchiveError> {
        sources::further(entries, components)
    }

    fn has_lists(&self, files: &dyn ReadFiles) -> Result<bool, FilesError> {
        let names = files.list(Utf8Path::new(CACHE))?;
        Ok(names.iter().any(|name| name.ends_with(".solv")))
    }

    fn keyring_path(&self, repository: &Repository) -> Option<Utf8PathBuf> {
        repository::keyring_path(repository)
    }

    /// rpm can import only armored keys.
    fn wants_armour(&self) -> bool {
        true
    }

    fn source(&self, repository: &Repository) -> (Utf8PathBuf, String) {
        repository::source(repository)
    }

    fn streams(&self) -> Option<&dyn Streams> {
        Some(&streams::DnfStreams)
    }

    fn hold_list(&self) -> Option<&dyn HoldList> {
        Some(&versionlock::Versionlock)
    }

    /// Source: rpm, `lib/fsm.c`, `SUFFIX_RPMSAVE`.
    fn removed_configuration(&self) -> Option<&'static str> {
        Some(".rpmsave")
    }

    fn has_several_versions(&self, name: &str) -> bool {
        database::has_several_versions(name)
    }

    fn bare_name<'n>(&self, id: &'n str) -> &'n str {
        database::name_in(id)
    }

    fn exclusions(&self, files: &dyn ReadFiles) -> Result<Vec<Exclusion>, FilesError> {
        exclusions::read(files)
    }

    fn proxies(&self, files: &dyn ReadFiles) -> Result<Vec<String>, FilesError> {
        exclusions::proxies(files)
    }

    fn commands(&self) -> Commands {
        Commands {
            unhold: "dnf versionlock delete 'ENTRY'",
            clean: "dnf clean packages",
            refresh: "dnf makecache --refresh",
            reinstall: "dnf reinstall NAME",
            install: "dnf install NAME",
            upgrade_kernel: "dnf upgrade kernel",
            install_kernel: "dnf install kernel-KERNEL",
            // Every release has `yum`. EL 7 has no dnf.
            install_version: "yum install 'NAME-VERSION*'",
            upgrade: "yum upgrade NAME",
            compiler: None,
            versions: "yum list --showduplicates NAME",
            headers: "yum install kernel-devel-KERNEL",
            // Its name starts with the name of the kernel package, such as `kernel6.12` in Amazon Linux.
            extra_modules: "the kernel's `modules-extra`",
            credentials: "the options `username` and `password` of the repository's file, \
                          dnf.conf(5), with mode 0600",
        }
    }

    fn refresh(&self, settings: &Settings, _past_caches: bool) -> Cmd {
        commands::refresh(settings)
    }

    fn offers(&self, names: &[&str]) -> Query {
        offers::versions(names)
    }

    fn offers_of_all_streams(&self, names: &[&str]) -> Query {
        offers::versions_of_all_streams(names)
    }

    fn parse_offers(&self, text: &str) -> Vec<AvailablePackage> {
        offers::parse(text)
    }

    fn contents(&self, names: &[&str]) -> Option<Query> {
        Some(offers::contents(names))
    }

    fn parse_contents(&self, text: &str) -> Vec<Contents> {
        offers::parse_contents(text)
    }

    fn simulate(&self, settings: &Settings, request: &TransactionRequest<'_>) -> Query {
        commands::simulate(settings, request)
    }

    fn has_answered(&self, output: &Output) -> bool {
        transaction::is_answer(output.ok(), &output.stdout, &output.stderr)
    }

    fn parse_actions(&self, text: &str, installed: &[Package]) -> Vec<Action> {
        transaction::actions(text, installed)
    }

    fn upgrade(&self) -> Option<Query> {
        Some(commands::upgrade())
    }

    fn not_queried(&self, output: &Output) -> Option<String> {
        faults::without_lists(&output.stderr)
            .map(|repository| format!("repository `{repository}` has no package list"))
    }

    fn estimate(&self, settings: &Settings, request: &TransactionRequest<'_>) -> Option<Query> {
        Some(commands::simulate(settings, request))
    }

    fn parse_estimate(&self, text: &str) -> Estimate {
        transaction::estimate(text)
    }

    fn download(&self, settings: &Settings, request: &TransactionRequest<'_>) -> Cmd {
        commands::download(settings, request)
    }

    fn perform(
        &self,
        settings: &Settings,
        request: &TransactionRequest<'_>,
        _removals: Removals,
    ) -> Cmd {
        commands::perform(settings, request)
    }

    fn performs_from_downloads(&self) -> bool {
        true
    }

    /// The exit status of the dnf shell is 0 even if one of its commands failed.
    fn has_succeeded(&self, output: &Output) -> bool {
        output.ok()
            && !faults::has_error(&output.stderr)
            && !transaction::has_problem(&output.stdout)
    }

    fn failed_scripts(&self, output: &str) -> Option<String> {
        faults::failed_scripts(output)
    }

    fn configure(&self) -> Option<Cmd> {
        None
    }

    fn unfinished(&self) -> Option<Query> {
        Some(commands::last_transaction())
    }

    fn parse_unfinished(&self, text: &str, installed: &[Package]) -> Vec<String> {
        interruption::to_complete(&history::unfinished(text), installed)
    }

    fn parse_missing(&self, text: &str, installed: &[Package]) -> Vec<String> {
        interruption::missing(&history::unfinished(text), installed)
    }

    fn to_offered_command(&self, package: &Package) -> Option<String> {
        Some(commands::to_offered(package))
    }

    fn configuration_of(&self, names: &[&str]) -> Option<Query> {
        Some(database::configuration_of(names))
    }

    fn parse_configuration(&self, text: &str) -> Vec<Utf8PathBuf> {
        database::parse_configuration(text)
    }

    fn mark(&self, mark: Mark, packages: &[String]) -> Cmd {
        commands::mark(mark, packages)
    }

    fn at_version(&self, name: &str, version: &str) -> String {
        format!("{name}-{version}")
    }

    fn downgrade_command(&self, packages: &[String]) -> String {
        format!("dnf downgrade {}", packages.join(" "))
    }

    fn short_line(&self, cmd: &Cmd) -> String {
        commands::short_line(cmd)
    }

    fn fault(&self, output: &str) -> Fault {
        faults::fault(output)
    }

    fn remedy(&self, output: &str) -> Option<&'static str> {
        faults::remedy_for(output)
    }

    fn telling_line<'t>(&self, output: &'t str) -> Option<&'t str> {
        faults::telling_line(output)
    }

    fn first_reason<'t>(&self, output: &'t str) -> Option<&'t str> {
        faults::first_reason(output)
    }

    fn preflight_issue(&self, output: &str) -> Option<String> {
        faults::preflight_issue(output)
    }

    fn failed_sources(&self, output: &str) -> Option<String> {
        faults::failed_sources(output)
    }

    fn failures_by_source(&self, output: &str) -> Option<Vec<SourceFailure>> {
        faults::failures_by_source(output)
    }

    fn torn_caches(
        &self,
        files: &dyn ReadFiles,
        output: &str,
    ) -> Result<Vec<Utf8PathBuf>, FilesError> {
        let repositories = faults::unreadable(output);
        if repositories.is_empty() {
            return Ok(Vec::new());
        }
        let is_of = |name: &str, repository: &str| {
            (name.strip_prefix(repository)).is_some_and(|rest| rest.starts_with(['.', '-']))
        };
        let mut names = files.list(Utf8Path::new(CACHE))?;
        names.retain(|name| {
            (name.ends_with(".solv") || name.ends_with(".solvx"))
                && repositories.iter().any(|one| is_of(name, one))
        });
        let path = |name: &String| Utf8Path::new(CACHE).join(name);
        Ok(names.iter().map(path).collect())
    }

    fn follow_up(&self, files: &dyn ReadFiles) -> Result<Vec<Cmd>, FilesError> {
        agents::end(files)
    }

    fn is_stage(&self, line: &str) -> bool {
        progress::is_stage(line)
    }

    fn download_size(&self, line: &str) -> Option<u64> {
        progress::download_size(line)
    }

    fn download_part(&self, line: &str) -> Option<u64> {
        progress::download_part(line)
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use super::Dnf;
    use crate::tools::packages::Backend;

    #[test]
    fn versions_sort_like_in_rpm() {
        for (older, newer) in [
            ("580.95.05-1.el9", "3:570.1-1.el9"),
            ("3:580.9.1-1", "3:580.10.1-1"),
            ("1.0~rc1-1", "1.0-1"),
            ("1.0-1", "1.0^git1-1"),
        ] {
            assert_eq!(
                Dnf.compare(older, newer),
                Ordering::Less,
                "{older} < {newer}"
            );
        }
        assert_eq!(Dnf.compare("0:1.0-1", "1.0-1"), Ordering::Equal);
    }

    #[test]
    fn pattern_without_epoch_matches_any_epoch() {
        for (wanted, version, expected) in [
            ("580.*", "3:580.95.05-1.el9", true),
            ("580.*", "580.95.05-1.el9", true),
            ("3:580.*", "3:580.95.05-1.el9", true),
            ("2:580.*", "3:580.95.05-1.el9", false),
            ("3:580.*", "580.95.05-1.el9", false),
            ("570.*", "3:580.95.05-1.el9", false),
        ] {
            assert_eq!(Dnf.matches(wanted, version), expected, "{wanted} {version}");
        }
    }
}

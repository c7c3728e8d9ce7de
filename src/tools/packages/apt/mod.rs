//! `apt-get` on top of `dpkg`: Debian and Ubuntu.

mod archive;
pub(in crate::tools) mod bounds;
pub(in crate::tools) mod commands;
mod database;
mod estimate;
mod exclusions;
mod faults;
mod lists;
mod marks;
pub(in crate::tools) mod offers;
mod progress;
mod records;
mod repository;
mod simulation;
mod sizes;
mod sources;
mod unattended_upgrades;
mod version;

use std::{cmp::Ordering, collections::BTreeSet};

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};

use super::{
    Action, ArchiveError, AvailablePackage, Backend, Commands, DatabaseError, Estimate, Exclusion,
    Fault, Further, LowerBounds, Mark, Package, Removals, Settings, SourceEntry, SourceFailure,
    SourceIssue, TransactionRequest, Updater,
};
use crate::{
    host::{Cmd, FileKind, FilesError, Query, ReadFiles, Reader},
    model::packages::{Pin, Repository},
};

/// The directory of downloaded package files.
const ARCHIVES: &str = "/var/cache/apt/archives";

/// The files that are locked while packages or lists change. The first one is locked during a complete transaction.
const LOCKS: [&str; 4] = [
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
];

/// The apt backend.
#[derive(Debug)]
pub struct Apt;

#[async_trait]
impl Backend for Apt {
    fn name(&self) -> &'static str {
        "apt"
    }

    fn is_used_on(&self, files: &dyn ReadFiles) -> Result<bool, FilesError> {
        let text = files.read(Utf8Path::new(database::PATH))?;
        Ok(text.is_some_and(|text| !text.trim_ascii().is_empty()))
    }

    async fn database(&self, host: Reader<'_>) -> Result<Option<Vec<Package>>, DatabaseError> {
        Ok(database::read(host.files())?)
    }

    fn database_path(&self) -> &'static str {
        database::PATH
    }

    fn interrupted(&self, files: &dyn ReadFiles) -> Result<Option<&'static str>, FilesError> {
        let updates = files.list(Utf8Path::new(database::UPDATES))?;
        Ok(database::interrupted(&updates).then_some("dpkg"))
    }

    async fn automatic(
        &self,
        host: Reader<'_>,
        packages: &[Package],
    ) -> Result<BTreeSet<String>, DatabaseError> {
        let bytes = host
            .files()
            .read(Utf8Path::new(marks::PATH))?
            .unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        Ok(marks::parse(&text, database::native(packages)))
    }

    async fn owned_below(
        &self,
        host: Reader<'_>,
        directory: &Utf8Path,
    ) -> Result<BTreeSet<Utf8PathBuf>, DatabaseError> {
        Ok(database::owned_below(host.files(), directory)?)
    }

    async fn owned_by(
        &self,
        host: Reader<'_>,
        packages: &BTreeSet<String>,
    ) -> Result<BTreeSet<Utf8PathBuf>, DatabaseError> {
        Ok(database::owned_by(host.files(), packages)?)
    }

    /// Compares versions like dpkg. Invalid versions are compared as text instead of causing an error, because apt itself
    /// rejects them.
    fn compare(&self, a: &str, b: &str) -> Ordering {
        version::compare(a, b)
    }

    fn last_run(&self) -> Option<&'static Utf8Path> {
        Some(Utf8Path::new(database::PATH))
    }

    fn downloads(&self) -> Option<&'static Utf8Path> {
        Some(Utf8Path::new(ARCHIVES))
    }

    /// Parses `NAME_VERSION_ARCHITECTURE.deb`. apt writes `%3a` for the colon after an epoch.
    fn downloaded(&self, file: &str) -> Option<(String, String)> {
        let mut parts = file.strip_suffix(".deb")?.split('_');
        Some((parts.next()?.to_owned(), parts.next()?.replace("%3a", ":")))
    }

    fn locks(&self) -> &'static [&'static str] {
        &LOCKS
    }

    fn truncated_lists(&self, files: &dyn ReadFiles) -> Result<Vec<Utf8PathBuf>, FilesError> {
        lists::torn(files)
    }

    fn has_lists(&self, files: &dyn ReadFiles) -> Result<bool, FilesError> {
        let names = files.list(Utf8Path::new(lists::DIRECTORY))?;
        Ok(lists::are_complete(&names, &sources::read(files)?))
    }

    fn configures(&self) -> Option<&'static str> {
        Some(
            "run `dpkg --configure -a`; if a dependency is missing, run `apt-get --fix-broken install`",
        )
    }

    fn forced(&self, files: &dyn ReadFiles) -> Result<Vec<Exclusion>, FilesError> {
        exclusions::forced(files)
    }

    fn source_issues(&self, files: &dyn ReadFiles) -> Result<Vec<SourceIssue>, FilesError> {
        let mut found = sources::issues(files)?;
        found.extend(exclusions::issues(files)?);
        Ok(found)
    }

    fn entries(&self, files: &dyn ReadFiles) -> Result<Vec<SourceEntry>, FilesError> {
        sources::read(files)
    }

    fn further(
        &self,
        entries: &[SourceEntry],
        suites: &[String],
        components: &[String],
    ) -> Result<Option<Further>, ArchiveError> {
        archive::further(entries, suites, components)
    }

    fn needs_suites(&self) -> bool {
        true
    }

    fn keyring_path(&self, repository: &Repository) -> Option<Utf8PathBuf> {
        repository::keyring_path(repository)
    }

    fn source(&self, repository: &Repository) -> (Utf8PathBuf, String) {
        repository::source(repository)
    }

    fn priority(&self, repository: &Repository) -> Option<(Utf8PathBuf, String)> {
        repository::priority(repository)
    }

    fn pin(&self, pin: &Pin) -> Option<(Utf8PathBuf, String)> {
        Some(repository::pin(pin))
    }

    fn updater(&self) -> Option<&dyn Updater> {
        Some(&unattended_upgrades::UnattendedUpgrades)
    }

    fn bare_name<'n>(&self, id: &'n str) -> &'n str {
        id.split(':').next().unwrap_or(id)
    }

    fn exclusions(&self, files: &dyn ReadFiles) -> Result<Vec<Exclusion>, FilesError> {
        exclusions::read(files)
    }

    fn proxies(&self, files: &dyn ReadFiles) -> Result<Vec<String>, FilesError> {
        exclusions::proxies(files)
    }

    fn has_branch_in_names(&self) -> bool {
        true
    }

    fn commands(&self) -> Commands {
        Commands {
            unhold: "apt-mark unhold NAME",
            clean: "apt-get clean",
            refresh: "apt-get update",
            reinstall: "apt-get install --reinstall NAME",
            install: "apt-get install NAME",
            // apt-get(8): a new kernel is a new package, which a plain `upgrade` does not install.
            upgrade_kernel: "apt-get upgrade --with-new-pkgs",
            install_kernel: "apt-get install linux-image-KERNEL",
            install_version: "apt-get install 'NAME=VERSION*'",
            upgrade: "apt-get install --only-upgrade NAME",
            compiler: Some("apt-get install COMPILER"),
            versions: "apt-cache policy NAME",
            headers: "apt-get install linux-headers-KERNEL",
            extra_modules: "`linux-modules-extra-KERNEL`",
            credentials: "a file of mode 0600 in `/etc/apt/auth.conf.d`, see apt_auth.conf(5)",
        }
    }

    fn refresh(&self, settings: &Settings, past_caches: bool) -> Cmd {
        commands::update(settings, past_caches)
    }

    fn offers(&self, names: &[&str]) -> Query {
        offers::candidates(names)
    }

    fn names(&self, prefix: &str) -> Option<Query> {
        Some(offers::names(prefix))
    }

    fn lower_bounds(&self, names: &[&str]) -> Option<Query> {
        Some(bounds::show(names))
    }

    fn parse_lower_bounds(&self, text: &str) -> Vec<LowerBounds> {
        bounds::parse(text)
    }

    fn parse_offers(&self, text: &str) -> Vec<AvailablePackage> {
        offers::parse(text)
    }

    fn simulate(&self, settings: &Settings, request: &TransactionRequest<'_>) -> Query {
        commands::simulate(settings, request)
    }

    fn parse_actions(&self, text: &str, _: &[Package]) -> Vec<Action> {
        simulation::parse(text)
    }

    fn upgrade(&self) -> Option<Query> {
        Some(commands::upgrade())
    }

    fn overridden(&self, files: &dyn ReadFiles) -> Result<Vec<Exclusion>, FilesError> {
        exclusions::behind_ours(files)
    }

    fn contrary(
        &self,
        files: &dyn ReadFiles,
        pin: &Pin,
        packages: &[&str],
    ) -> Result<Vec<Exclusion>, FilesError> {
        exclusions::contrary(files, pin, packages)
    }

    fn forbids(&self, files: &dyn ReadFiles) -> Result<Option<&'static str>, FilesError> {
        let directory = Utf8Path::new("/etc/apt/preferences.d");
        let parts = files
            .list(directory)?
            .into_iter()
            .map(|name| directory.join(name));
        for path in parts.chain(["/etc/apt/preferences".into()]) {
            let is_file = (files.stat(&path)?).is_some_and(|stat| stat.kind != FileKind::Directory);
            if is_file
                && (files.read(&path)?)
                    .is_some_and(|text| offers::forbids(&String::from_utf8_lossy(&text)))
            {
                return Ok(Some(offers::LIFTED));
            }
        }
        Ok(None)
    }

    fn estimate(&self, settings: &Settings, request: &TransactionRequest<'_>) -> Option<Query> {
        Some(commands::estimate(settings, request))
    }

    fn parse_estimate(&self, text: &str) -> Estimate {
        estimate::parse(text)
    }

    fn download(&self, settings: &Settings, request: &TransactionRequest<'_>) -> Cmd {
        commands::download(settings, request)
    }

    fn perform(
        &self,
        settings: &Settings,
        request: &TransactionRequest<'_>,
        removals: Removals,
    ) -> Cmd {
        commands::perform(settings, request, removals)
    }

    fn simulates_side_by_side(&self) -> bool {
        true
    }

    fn scripts_may_leave_modules(&self) -> bool {
        true
    }

    fn configure(&self) -> Option<Cmd> {
        Some(commands::configure())
    }

    fn mark(&self, mark: Mark, packages: &[String]) -> Cmd {
        commands::mark(mark, packages)
    }

    fn at_version(&self, name: &str, version: &str) -> String {
        format!("{name}={version}")
    }

    fn downgrade_command(&self, packages: &[String]) -> String {
        format!("apt-get install --allow-downgrades {}", packages.join(" "))
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
        (output.lines().find_map(|line| line.strip_prefix("E: "))).or_else(|| output.lines().last())
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
    use super::Apt;
    use crate::tools::packages::Backend;

    #[test]
    fn archive_file_names_are_parsed() {
        let read = |file: &str| Apt.downloaded(file);
        assert_eq!(
            read("docker-ce_5%3a27.3.1-1_amd64.deb"),
            Some(("docker-ce".to_owned(), "5:27.3.1-1".to_owned()))
        );
        assert_eq!(read("lock"), None);
    }
}

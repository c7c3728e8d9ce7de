//! The package lists, and the downloaded packages.

use camino::{Utf8Path, Utf8PathBuf};

use super::{AvailablePackage, Contents, LowerBounds, Settings};
use crate::host::{Cmd, FilesError, Query, ReadFiles};

/// The available packages.
pub trait Offers {
    /// Whether package lists exist, so that a package that is not in them is unavailable. `bundled` is the directory with the
    /// sources of a run with a bundle, which are then used instead of the sources of the machine.
    ///
    /// # Errors
    /// If the directory cannot be read.
    fn has_lists(
        &self,
        files: &dyn ReadFiles,
        bundled: Option<&Utf8Path>,
    ) -> Result<bool, FilesError>;

    /// Returns the truncated files of the package lists, which must be downloaded again.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn truncated_lists(&self, _files: &dyn ReadFiles) -> Result<Vec<Utf8PathBuf>, FilesError> {
        Ok(Vec::new())
    }

    /// Returns the cache files that the manager generates from its lists and that could not be read, according to the output of
    /// a refresh. A power loss truncates them, and the manager does not regenerate existing files.
    ///
    /// # Errors
    /// If an existing directory cannot be read.
    fn torn_caches(
        &self,
        _files: &dyn ReadFiles,
        _output: &str,
    ) -> Result<Vec<Utf8PathBuf>, FilesError> {
        Ok(Vec::new())
    }

    /// Downloads the package lists. `past_caches` bypasses proxy caches, for a mirror that is being synchronized.
    fn refresh(&self, settings: &Settings, past_caches: bool) -> Cmd;

    /// Queries the available versions of packages.
    fn offers(&self, names: &[&str]) -> Query;

    /// Same as [`Self::offers`], but for all module streams.
    fn offers_of_all_streams(&self, names: &[&str]) -> Query {
        self.offers(names)
    }

    /// Parses the output of [`Self::offers`].
    fn parse_offers(&self, text: &str) -> Vec<AvailablePackage>;

    /// Queries the names of all packages in the lists with this prefix, one per line. `None` if this manager has no fast query
    /// for it.
    fn names(&self, _prefix: &str) -> Option<Query> {
        None
    }

    /// Queries the files of every available version of these packages, or `None` if this manager's lists do not contain them.
    fn contents(&self, _names: &[&str]) -> Option<Query> {
        None
    }

    /// Parses the output of [`Self::contents`].
    fn parse_contents(&self, _text: &str) -> Vec<Contents> {
        Vec::new()
    }

    /// Queries the dependency versions that the candidates of these packages accept, or `None` if this manager is not queried
    /// for them.
    fn lower_bounds(&self, _names: &[&str]) -> Option<Query> {
        None
    }

    /// Parses the output of [`Self::lower_bounds`].
    fn parse_lower_bounds(&self, _text: &str) -> Vec<LowerBounds> {
        Vec::new()
    }

    /// The directory of downloaded package files.
    fn downloads(&self) -> &'static Utf8Path;

    /// Returns the package and version of a file in [`Self::downloads`].
    fn downloaded(&self, _file: &str) -> Option<(String, String)> {
        None
    }
}

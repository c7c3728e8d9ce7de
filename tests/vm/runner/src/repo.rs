//! A signed apt repository, laid out as NVIDIA's own, with a key made for it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::sh::Cmd;

/// Path of the repository below the server's root, as at NVIDIA's.
pub const PATH: &str = "libnvidia-container/stable/deb/amd64";
/// Path of its key.
pub const KEY_PATH: &str = "libnvidia-container/gpgkey";

/// A repository that is ready to be served.
#[derive(Clone, Debug)]
pub struct Repository {
    /// What the server shows.
    pub root: PathBuf,
    /// Fingerprint of the key that signs it.
    pub fingerprint: String,
}

/// A repository of the packages in `packages`.
pub fn build(bed: &Bed, packages: &Path) -> Result<Repository> {
    let recipe = format!("v1 {}", packages.display());
    let dir = bed.cached("repository", &recipe, None, |dir| make(dir, packages))?;
    let fingerprint = fs::read_to_string(dir.join("fingerprint"))
        .context("cannot read the fingerprint")?
        .trim()
        .to_string();
    Ok(Repository {
        root: dir.join("www"),
        fingerprint,
    })
}

fn make(dir: &Path, packages: &Path) -> Result<()> {
    let at = dir.join("www").join(PATH);
    fs::create_dir_all(&at).context("cannot make a folder")?;
    for entry in fs::read_dir(packages).context("cannot read the packages")? {
        let entry = entry.context("cannot read the packages")?;
        fs::copy(entry.path(), at.join(entry.file_name())).context("cannot copy a package")?;
    }
    // Paths of sockets have a limit that a deep cache folder may pass, so that the key's home is
    // below /run for as long as it signs.
    let home = PathBuf::from(format!("/run/gpu-bootstrap-vm-key-{}", std::process::id()));
    let gone = home.clone();
    let _home = crate::stop::guard(move || {
        let kill = Cmd::new(["gpgconf", "--kill", "all"]).env("GNUPGHOME", gone.to_string_lossy());
        let _ = kill.run();
        if let Err(error) = crate::bed::remove_tree(&gone) {
            crate::out::say(format!("the key's home is left behind: {error:#}"));
        }
    });
    let script = r#"set -eu
umask 077
mkdir "$GNUPGHOME"
gpg --batch --quiet --passphrase '' --quick-gen-key 'Test bed <test-bed@example.invalid>' rsa3072 sign never
gpg --armor --export >"$KEY"
chmod 644 "$KEY"
gpg --list-keys --with-colons | awk -F: '$1 == "fpr" { print $10; exit }' >"$FINGERPRINT"
umask 022
apt-ftparchive packages . >Packages
gzip --keep Packages
apt-ftparchive -o APT::FTPArchive::Release::Origin=https://nvidia.github.io/libnvidia-container/stable/deb/ \
    -o APT::FTPArchive::Release::Label=test-bed release . >"$RELEASE"
mv "$RELEASE" Release
gpg --batch --quiet --clearsign --output InRelease Release
gpg --batch --quiet --armor --detach-sign --output Release.gpg Release
"#;
    Cmd::new(["/bin/bash", "-c", script])
        .cwd(&at)
        .env("GNUPGHOME", home.to_string_lossy())
        .env("KEY", dir.join("www").join(KEY_PATH).to_string_lossy())
        .env("FINGERPRINT", dir.join("fingerprint").to_string_lossy())
        .env("RELEASE", dir.join("release").to_string_lossy())
        .ok()
        .context("cannot make a signed repository")?;
    Ok(())
}

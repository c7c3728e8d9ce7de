//! Signed repositories with the vendors' layout and with generated keys: for apt here, for dnf in `rpm`. They contain
//! the container toolkit from its real source, and the fake packages of `packages.toml` and of the directory `rpms`.

mod fake;
pub mod rpm;
pub mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::claim::Claim;
use crate::group::Part;
use crate::repo::table::{Packages, Place};
use crate::rootfs::Mirror;
use crate::sh::Cmd;

/// The repository whose packages `toolkit.rs` builds.
const TOOLKIT: &str = "toolkit";
/// The directory of packages that are in no repository, one for each kernel.
const GONE: &str = "gone";
/// The server's port in the network of each machine.
pub const PORT: u16 = 8077;
/// A part of the recipe, because a change of these files may change the result.
const SOURCE: [&str; 3] = [
    include_str!("mod.rs"),
    include_str!("fake.rs"),
    include_str!("table.rs"),
];
/// The Debian release whose binaries are packaged under Docker's names.
const SUITE: &str = "bookworm";
const BINARIES: &str = "docker.io,containerd,runc,tini";
const SIGN: &str = include_str!("sign.sh");

/// Repositories that are ready to be served.
#[derive(Clone, Debug)]
pub struct Repositories {
    /// The directory that the server serves.
    pub root: PathBuf,
    /// The directories that it serves during a fault, one for each kind.
    pub faults: PathBuf,
    /// The entry of each repository, and the fingerprint of its signing key.
    pub places: BTreeMap<String, (Place, String)>,
}

impl Repositories {
    /// Template values: URL, key and fingerprint of each repository.
    pub fn values(&self) -> BTreeMap<String, String> {
        let mut values = addresses(self.places.iter().map(|(name, (place, _))| (name, place)));
        for (name, (_, fingerprint)) in &self.places {
            values.insert(format!("{name}-fingerprint"), fingerprint.clone());
        }
        values
    }

    /// The binary public key of a repository.
    pub fn key(&self, name: &str) -> PathBuf {
        self.root.with_file_name("keys").join(name)
    }

    /// The directory of packages of a kernel that were removed from all repositories.
    pub fn gone(&self, kernel: &str) -> PathBuf {
        self.root.with_file_name(GONE).join(kernel)
    }

    /// The names that a machine must resolve to the server's address.
    pub fn hosts(&self) -> Vec<&str> {
        self.places
            .values()
            .map(|(place, _)| place.host.as_str())
            .filter(|host| host.parse::<std::net::IpAddr>().is_err())
            .collect()
    }
}

/// `NAME-url` and `NAME-key-url` of each repository.
fn addresses<'a>(
    places: impl Iterator<Item = (&'a String, &'a Place)>,
) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    for (name, place) in places {
        let server = format!("http://{}:{PORT}", place.host);
        values.insert(format!("{name}-url"), format!("{server}/{}", place.path));
        values.insert(format!("{name}-key-url"), format!("{server}/{}", place.key));
    }
    values
}

/// Builds the repositories of the table. `toolkit` contains the packages of the container toolkit, `programs` the
/// compiled programs that the table refers to, if any.
pub fn build(
    bed: &Bed,
    table: &Packages,
    toolkit: &Path,
    programs: Option<&Path>,
    mirror: &Mirror,
) -> Result<Repositories> {
    let recipe = format!(
        "{} {programs:?} {table:?} {SIGN} {SOURCE:?}",
        toolkit.display()
    );
    let dir = bed.cached("repository", &recipe, None, |dir| {
        let paths = (table.packages.iter()).flat_map(|package| package.from_debian.values());
        let binaries = binaries(bed, paths, mirror)?;
        make(bed, dir, table, toolkit, (&binaries, programs))
    })?;
    let mut places = BTreeMap::new();
    for (name, place) in &table.repositories {
        let fingerprint = fs::read_to_string(dir.join("fingerprints").join(name))
            .context("cannot read a fingerprint")?;
        places.insert(
            name.clone(),
            (place.clone(), fingerprint.trim().to_string()),
        );
    }
    Ok(Repositories {
        root: dir.join("www"),
        faults: dir.join("faults"),
        places,
    })
}

/// The files of Debian packages that the fakes contain.
fn binaries<'a>(
    bed: &Bed,
    paths: impl Iterator<Item = &'a String>,
    mirror: &Mirror,
) -> Result<PathBuf> {
    let paths: Vec<&String> = paths.collect();
    let recipe = format!("{mirror:?} {paths:?} {}", SOURCE[0]);
    bed.cached("binaries", &recipe, None, |dir| {
        let tree = dir.join("tree");
        Cmd::new([
            "mmdebstrap",
            "--variant=extract",
            "--mode=root",
            "--quiet",
            &format!("--include={BINARIES}"),
            SUITE,
            &tree.to_string_lossy(),
            &format!(
                "deb [signed-by={}] {} {SUITE} main",
                crate::rootfs::KEYRING,
                mirror.main
            ),
        ])
        .ok()
        .context("cannot unpack Debian's container packages")?;
        for path in paths {
            let to = dir.join(path);
            fs::create_dir_all(to.parent().unwrap_or(dir)).context("cannot create a directory")?;
            fs::rename(tree.join(path), to).with_context(|| format!("cannot keep {path}"))?;
        }
        crate::bed::remove_tree(&tree)
    })
}

fn make(
    bed: &Bed,
    dir: &Path,
    table: &Packages,
    toolkit: &Path,
    (binaries, programs): (&Path, Option<&Path>),
) -> Result<()> {
    let www = dir.join("www");
    let gpg = Gpg(Claim::take(bed, "keys")?);
    let files = (table.repositories.iter()).map(|(name, place)| (name.as_str(), &*place.key));
    let keys = keys(dir, &gpg, files)?;
    for (name, place) in &table.repositories {
        for pool in place.pools() {
            fs::create_dir_all(join(&www, place, &pool)).context("cannot create a directory")?;
        }
        if name == TOOLKIT {
            let pool = join(&www, place, ".");
            for entry in fs::read_dir(toolkit).context("cannot read the packages")? {
                let entry = entry.context("cannot read the packages")?;
                fs::copy(entry.path(), pool.join(entry.file_name()))
                    .context("cannot copy a package")?;
            }
        }
    }
    let values = addresses(table.repositories.iter());
    let source = fake::Source {
        keys: &keys,
        debian: binaries,
        programs,
        values: &values,
    };
    let work = dir.join("work");
    for package in &table.packages {
        let place = &table.repositories[&package.repository];
        let pool = match &package.gone {
            Some(kernel) => dir.join(GONE).join(kernel),
            None => join(&www, place, &place.pool(package)),
        };
        fs::create_dir_all(&pool).context("cannot create a directory")?;
        for version in &package.versions {
            fs::create_dir_all(&work).context("cannot create a directory")?;
            fake::build(package, version, &source, &work, &pool)
                .with_context(|| format!("cannot build {} {version}", package.name))?;
            crate::bed::remove_tree(&work)?;
        }
    }
    for (name, place) in &table.repositories {
        fs::create_dir_all(&work).context("cannot create a directory")?;
        sign(dir, &gpg, &work, name, place)
            .with_context(|| format!("cannot sign the repository {name}"))?;
        crate::bed::remove_tree(&work)?;
    }
    Ok(())
}

/// The GnuPG home in which packages are signed. Its path is short, because socket paths have a length limit. The
/// gpg-agent exits with the claim.
struct Gpg(Claim);

/// GnuPG prefers the user's runtime directory for its sockets, if it exists, and leaves them behind.
const PRIVATE: &str = r#"
if [ -d /run/user ]; then mount -t tmpfs tmpfs /run/user; fi
exec /bin/bash -c "$1"
"#;

impl Gpg {
    /// A script with this GnuPG home.
    fn bash(&self, script: &str) -> Cmd {
        let argv = [
            "unshare",
            "--mount",
            "--propagation=private",
            "/bin/sh",
            "-euc",
            PRIVATE,
            "sh",
            script,
        ];
        let argv = self.0.group.inside(Part::Support, &argv.map(String::from));
        Cmd::new(argv).env("GNUPGHOME", self.0.run.join("home").to_string_lossy())
    }
}

/// A directory of a repository's packages.
fn join(www: &Path, place: &Place, pool: &str) -> PathBuf {
    // Without a trailing `.`, which cannot be created as a directory.
    www.join(&place.path).join(pool).components().collect()
}

/// The user id of a key.
fn owner(name: &str) -> String {
    format!("{name}@test-bed.example.invalid")
}

/// Creates a key for each repository, given by its name and the path of its public key on the server, and one that
/// belongs to none. Returns the public keys.
fn keys<'a>(
    dir: &Path,
    gpg: &Gpg,
    files: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<BTreeMap<String, PathBuf>> {
    let script = r#"set -eu
umask 077
mkdir -p "$GNUPGHOME"
gpg --batch --quiet --passphrase '' --quick-gen-key "$OWNER" rsa3072 sign never
umask 022
mkdir -p "$(dirname "$KEY")" "$(dirname "$BINARY")" "$(dirname "$FINGERPRINT")"
gpg --armor --export "$OWNER" >"$KEY"
gpg --export "$OWNER" >"$BINARY"
gpg --list-keys --with-colons "$OWNER" | awk -F: '$1 == "fpr" { print $10; exit }' >"$FINGERPRINT"
"#;
    let mut keys = BTreeMap::new();
    let stranger = dir.join("stranger.asc");
    let all = files
        .map(|(name, key)| (name, dir.join("www").join(key)))
        .chain([(STRANGER, stranger)]);
    for (name, at) in all {
        let binary = dir.join("keys").join(name);
        gpg.bash(script)
            .env("OWNER", owner(name))
            .env("KEY", at.to_string_lossy())
            .env("BINARY", binary.to_string_lossy())
            .env(
                "FINGERPRINT",
                dir.join("fingerprints").join(name).to_string_lossy(),
            )
            .ok()
            .with_context(|| format!("cannot make a key for {name}"))?;
        keys.insert(name.to_string(), binary);
    }
    Ok(keys)
}

/// The key that belongs to no repository, for the fault `wrong-key`.
const STRANGER: &str = "stranger";

fn sign(dir: &Path, gpg: &Gpg, work: &Path, name: &str, place: &Place) -> Result<()> {
    let faults = |kind: &str| dir.join("faults").join(kind).join(&place.path);
    for kind in [WRONG_KEY, HALF_SYNCED] {
        fs::create_dir_all(faults(kind)).context("cannot create a directory")?;
    }
    gpg.bash(SIGN)
        .env("ROOT", dir.join("www").join(&place.path).to_string_lossy())
        .env("WORK", work.to_string_lossy())
        .env("NAME", owner(name))
        .env("STRANGER", owner(STRANGER))
        .env("ORIGIN", &place.origin)
        .env("LABEL", &place.label)
        .env("SUITES", place.suites.join(" "))
        .env("COMPONENTS", place.components.join(" "))
        .env("WRONG_KEY", faults(WRONG_KEY).to_string_lossy())
        .env("HALF_SYNCED", faults(HALF_SYNCED).to_string_lossy())
        .ok()?;
    Ok(())
}

/// The directory with files signed by another key.
pub const WRONG_KEY: &str = "wrong-key";
/// The directory with files of a mirror that is being synced.
pub const HALF_SYNCED: &str = "half-synced";
/// The directory with unsigned packages.
pub const UNSIGNED: &str = "unsigned";

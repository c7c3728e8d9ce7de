//! Signed repositories with the vendors' layout and with generated keys, for apt and for dnf. They contain the container
//! toolkit from its real source, and the fake packages of the tables. dpkg-deb and rpmbuild build the packages; the
//! metadata is made by apt-ftparchive and createrepo_c, and signed by gpg.

mod contents;
mod deb;
pub mod rpm;
pub mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use self::contents::{Contents, Sources};
use self::table::{Place, Table};
use crate::bed::Bed;
use crate::claim::Claim;
use crate::debian;
use crate::group::Part;
use crate::rootfs::Mirror;
use crate::sh::Cmd;

/// The repository whose packages `toolkit.rs` builds.
const TOOLKIT: &str = "toolkit";
/// The directory of packages that are in no repository, one for each kernel.
const GONE: &str = "gone";
/// The directory with the rpm packages that are installed on machines from the start.
const INSTALLED: &str = "installed";
/// The directory with files signed by another key.
pub const WRONG_KEY: &str = "wrong-key";
/// The directory with files of a mirror that is being synced.
pub const HALF_SYNCED: &str = "half-synced";
/// The directory with unsigned packages, only for dnf.
pub const UNSIGNED: &str = "unsigned";
/// The server's port in the network of each machine.
pub const PORT: u16 = 8077;
/// A part of the recipe, because a change of these files may change the result.
const SOURCE: [&str; 8] = [
    include_str!("mod.rs"),
    include_str!("contents.rs"),
    include_str!("deb.rs"),
    include_str!("formats.toml"),
    include_str!("rpm.rs"),
    include_str!("table.rs"),
    SIGN_DEB,
    SIGN_RPM,
];
/// The Debian packages whose binaries are packaged under Docker's names.
const BINARIES: &str = "docker.io,containerd,runc,tini";
/// Links the files of other repositories into `$1`.
const LINK: &str =
    r#"for name in www faults keys gone; do [ ! -e $name ] || cp -al $name "$1"; done"#;
const SIGN_DEB: &str = include_str!("sign.sh");
const SIGN_RPM: &str = include_str!("sign-rpm.sh");

/// Repositories that are ready to be served.
#[derive(Clone, Debug)]
pub struct Repositories {
    /// The table of their packages.
    pub table: Table,
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

    /// The directory of rpm packages that are installed on machines from the start.
    pub fn installed(&self) -> PathBuf {
        self.root.with_file_name(INSTALLED)
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

/// Builds the repositories of a table. `toolkit` contains the packages of the container toolkit, `programs` the compiled
/// programs that the table refers to, if any. With `base`, adds them to these, and replaces packages of the same name.
pub fn build(
    bed: &Bed,
    table: Table,
    (toolkit, programs): (&Path, Option<&Path>),
    mirror: &Mirror,
    base: Option<&Repositories>,
) -> Result<Repositories> {
    let recipe = format!(
        "{} {programs:?} {:?} {table:?} {SOURCE:?}",
        toolkit.display(),
        base.map(|base| &base.root)
    );
    let mut kind = match &table.release {
        Some(release) => format!("rpms-{}", release.number),
        None => "repository".into(),
    };
    kind.push_str(if base.is_some() { "-kubernetes" } else { "" });
    let dir = bed.cached(&kind, &recipe, None, |dir| {
        if let Some(base) = base {
            let (from, to) = (base.root.join(".."), dir.to_string_lossy());
            Cmd::new(["/bin/sh", "-euc", LINK, "sh", &to])
                .cwd(&from)
                .ok()
                .context("cannot link the repositories")?;
        }
        let debian = binaries(bed, &table, mirror)?;
        make(bed, dir, &table, (toolkit, &debian, programs))
    })?;
    let mut places = base.map_or_else(BTreeMap::new, |base| base.places.clone());
    for (name, place) in &table.repositories {
        let signer = place.key_of.as_ref().unwrap_or(name);
        let fingerprint = fs::read_to_string(dir.join("fingerprints").join(signer))
            .context("cannot read a fingerprint")?;
        let entry = (place.clone(), fingerprint.trim().to_string());
        places.insert(name.clone(), entry);
    }
    Ok(Repositories {
        table,
        root: dir.join("www"),
        faults: dir.join("faults"),
        places,
    })
}

/// The files of Debian packages that the fakes contain.
fn binaries(bed: &Bed, table: &Table, mirror: &Mirror) -> Result<PathBuf> {
    let packages = table.packages.iter();
    let paths: BTreeSet<&String> = packages.flat_map(|one| one.from_debian.values()).collect();
    if paths.is_empty() {
        return Ok(PathBuf::new());
    }
    let recipe = format!("{mirror:?} {paths:?} {BINARIES} {}", debian::SOURCE);
    bed.cached("binaries", &recipe, None, |dir| {
        let files = paths.into_iter().map(|path| (&**path, &**path));
        debian::unpack(mirror, BINARIES, files, dir)
    })
}

fn make(
    bed: &Bed,
    dir: &Path,
    table: &Table,
    (toolkit, debian, programs): (&Path, &Path, Option<&Path>),
) -> Result<()> {
    let gpg = Gpg(Claim::take(bed, "keys")?);
    keys(dir, &gpg, &table.repositories)?;
    let mut values = addresses(table.repositories.iter());
    if let Some(release) = &table.release {
        values.extend(release.values.clone());
    }
    let sources = Sources {
        table,
        dir,
        toolkit,
        debian,
        programs,
        values,
    };
    let work = dir.join("work");
    for (name, place) in &table.repositories {
        fs::create_dir_all(&work).context("cannot create a directory")?;
        let one = (name.as_str(), place);
        packages(&sources, one, &work)?;
        sign(&sources, &gpg, &work, one)
            .with_context(|| format!("cannot sign the repository {name}"))?;
        crate::bed::remove_tree(&work)?;
    }
    Ok(())
}

/// Builds the packages of one repository.
fn packages(sources: &Sources<'_>, (name, place): (&str, &Place), work: &Path) -> Result<()> {
    let (table, dir) = (sources.table, sources.dir);
    let pool = |pool: &str| join(&dir.join("www"), place, pool);
    for path in place.pools() {
        fs::create_dir_all(pool(&path)).context("cannot create a directory")?;
    }
    if name == TOOLKIT && table.release.is_none() {
        let (from, to) = (sources.toolkit.join("."), pool("."));
        Cmd::new(["cp", "-r", &from.to_string_lossy(), &to.to_string_lossy()])
            .ok()
            .context("cannot copy the packages of the toolkit")?;
    }
    let (mut specs, mut installed) = (Vec::new(), Vec::new());
    for package in table.packages.iter().filter(|one| one.repository == *name) {
        for (index, version) in package.versions.iter().enumerate() {
            let failed = || format!("cannot build {} {version}", package.name);
            let root = work.join("trees").join(specs.len().to_string());
            fs::create_dir_all(&root).context("cannot create a directory")?;
            let contents =
                Contents::write(package, version, sources, &root).with_context(failed)?;
            if table.release.is_some() {
                specs.push(rpm::spec(version, place, &contents).with_context(failed)?);
                if package.installed && index == 0 {
                    installed.push(package.rpm(version));
                }
                continue;
            }
            let to = match &package.gone {
                Some(kernel) => dir.join(GONE).join(kernel),
                None => pool(&place.pool(package)),
            };
            fs::create_dir_all(&to).context("cannot create a directory")?;
            deb::build(&contents, &to).with_context(failed)?;
            crate::bed::remove_tree(&root)?;
        }
    }
    let Some(release) = &table.release else {
        return Ok(());
    };
    rpm::build(&specs, work, &pool("."))
        .with_context(|| format!("cannot build the packages of {name}"))?;
    let to = dir.join(INSTALLED);
    fs::create_dir_all(&to).context("cannot create a directory")?;
    for file in &installed {
        fs::copy(pool(file), to.join(file)).with_context(|| format!("cannot copy {file}"))?;
    }
    let streams = rpm::modules(table, release, name)?;
    fs::write(work.join("modules.yaml"), streams).context("cannot write the streams")
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

/// Creates a key for each repository that has its own, and one that belongs to none. Files of other repositories with
/// the same name are replaced, not changed.
fn keys(dir: &Path, gpg: &Gpg, places: &BTreeMap<String, Place>) -> Result<()> {
    let script = r#"set -eu
umask 077
mkdir -p "$GNUPGHOME"
gpg --batch --quiet --passphrase '' --quick-gen-key "$OWNER" rsa3072 sign never
umask 022
mkdir -p "$(dirname "$KEY")" "$(dirname "$BINARY")" "$(dirname "$FINGERPRINT")"
rm -f "$KEY" "$BINARY"
gpg --armor --export "$OWNER" >"$KEY"
gpg --export "$OWNER" >"$BINARY"
gpg --list-keys --with-colons "$OWNER" | awk -F: '$1 == "fpr" { print $10; exit }' >"$FINGERPRINT"
"#;
    let own = (places.iter())
        .filter(|(_, place)| place.key_of.is_none())
        .map(|(name, place)| (name.as_str(), dir.join("www").join(&place.key)));
    for (name, at) in own.chain([(STRANGER, dir.join("stranger.asc"))]) {
        let file = |kind: &str| dir.join(kind).join(name).to_string_lossy().into_owned();
        gpg.bash(script)
            .env("OWNER", owner(name))
            .env("KEY", at.to_string_lossy())
            .env("BINARY", file("keys"))
            .env("FINGERPRINT", file("fingerprints"))
            .ok()
            .with_context(|| format!("cannot make a key for {name}"))?;
    }
    Ok(())
}

/// The key that belongs to no repository, for the fault `wrong-key`.
const STRANGER: &str = "stranger";

fn sign(
    sources: &Sources<'_>,
    gpg: &Gpg,
    work: &Path,
    (name, place): (&str, &Place),
) -> Result<()> {
    let script = match sources.table.release {
        Some(_) => SIGN_RPM,
        None => SIGN_DEB,
    };
    let root = sources.dir.join("www").join(&place.path);
    let mut cmd = gpg
        .bash(script)
        .env("ROOT", root.to_string_lossy())
        .env("WORK", work.to_string_lossy())
        .env("NAME", owner(place.key_of.as_deref().unwrap_or(name)))
        .env("STRANGER", owner(STRANGER))
        .env("ORIGIN", &place.origin)
        .env("LABEL", &place.label)
        .env("SUITES", place.suites.join(" "))
        .env("COMPONENTS", place.components.join(" "))
        .deadline(Duration::from_secs(900));
    for (variable, kind) in [
        ("WRONG_KEY", WRONG_KEY),
        ("HALF_SYNCED", HALF_SYNCED),
        ("UNSIGNED", UNSIGNED),
    ] {
        let fault = sources.dir.join("faults").join(kind).join(&place.path);
        fs::create_dir_all(&fault).context("cannot create a directory")?;
        cmd = cmd.env(variable, fault.to_string_lossy());
    }
    cmd.ok().map(drop)
}

//! `report`: compares the `check` documents of many nodes.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufReader},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use camino::Utf8Path;
use nix::fcntl::OFlag;

use super::{
    Failure,
    args::{ReportArgs, ReportFormat},
    env::Console,
    print,
};
use crate::{
    exit::Exit,
    host::Host,
    report::fleet::{self, Collected, Fleet},
};

/// The remedy if there are no documents.
const HINT: Option<&str> = Some(
    "specify a directory that contains the output of `gpu-bootstrap check --format json`, one file for each node, or `-` \
     for standard input",
);

pub(super) fn run(
    host: &Host,
    console: &mut Console<'_>,
    args: &ReportArgs,
) -> Result<Exit, Failure> {
    let mut collected = Collected::default();
    if args.from == "-" {
        collected.read("standard input", &mut io::stdin().lock());
    } else {
        read_directory(&args.from, &mut collected).map_err(|error| {
            let message = format!("failed to read the directory `{}`", args.from);
            Failure::caused(Exit::Usage, "report-unreadable", &message, error, HINT)
        })?;
    }
    if collected.is_empty() {
        let message = format!("failed to compare nodes: `{}` contains no file", args.from);
        return Err(Failure::new(Exit::Usage, "report-empty", &message, HINT));
    }
    let fleet = Fleet::of(collected, host.clock.now());
    match args.format {
        ReportFormat::Json => print::json(&mut console.out, &fleet)?,
        ReportFormat::Markdown => {
            print::show(&mut console.out, |to| fleet::markdown(to, &fleet))?;
        }
    }
    Ok(fleet.exit())
}

/// Reads all files of a directory except hidden ones. A file that cannot be read is listed in the report.
fn read_directory(directory: &Utf8Path, collected: &mut Collected) -> io::Result<()> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        names.push(entry?.file_name());
    }
    names.sort();
    for name in names {
        let shown = name.to_string_lossy();
        if shown.starts_with('.') {
            continue;
        }
        match open(&directory.as_std_path().join(&name)) {
            Ok(file) => collected.read(&shown, &mut BufReader::new(file)),
            Err(error) => collected.reject(&shown, &format!("failed to read it: {error}")),
        }
    }
    Ok(())
}

/// Opens a regular file. Opening a named pipe would wait for its writer.
fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("not a regular file")),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use camino::Utf8Path;
    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::{Collected, Fleet, read_directory};

    #[test]
    fn directory_with_other_entries_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("b.json"), "{}\n").unwrap();
        fs::write(path(".hidden"), "{}\n").unwrap();
        fs::write(path("empty.json"), "").unwrap();
        fs::create_dir(path("directory")).unwrap();
        mkfifo(&path("pipe"), Mode::S_IRWXU).unwrap();
        symlink("/nowhere", path("symlink")).unwrap();
        let mut collected = Collected::default();
        let root = Utf8Path::from_path(directory.path()).unwrap();
        read_directory(root, &mut collected).unwrap();
        let fleet = Fleet::of(collected, "2026-11-29T05:00:00Z".parse().unwrap());
        let unused: Vec<&str> = (fleet.unused.iter())
            .map(|unused| unused.document.as_str())
            .collect();
        assert_eq!(
            unused,
            ["b.json", "directory", "empty.json", "pipe", "symlink"]
        );
        assert_eq!(fleet.documents, 5);
        assert!(read_directory(&root.join("absent"), &mut Collected::default()).is_err());
    }
}

//! Package files outside the caches of package managers: what the product keeps for its way back. The
//! content of such a file is `NAME=VERSION`.

use gpu_bootstrap::host::{
    Output,
    fake::{FakeFiles, failed, ok},
};

use crate::{
    apt_said::address,
    archive,
    state::{State, text},
};

/// What a specification means: of a file, its content.
pub fn meant(files: &FakeFiles, spec: &str) -> String {
    match spec.starts_with('/') {
        true => text(files, spec)
            .unwrap_or_else(|| panic!("there is no file {spec}"))
            .trim_end()
            .to_owned(),
        false => spec.to_owned(),
    }
}

/// `apt-get install --reinstall`, as far as the product needs it: to download, and to ask for the size.
pub fn reinstall(
    files: &FakeFiles,
    state: &State,
    specs: &[String],
    uris: bool,
    folder: Option<&str>,
) -> Output {
    let offered = |spec: &&String| {
        let (name, version) = spec.split_once('=').expect("a version");
        (archive::offers(files, name).iter()).any(|offer| offer.version == version)
    };
    let specs = specs.iter().filter(offered);
    if uris {
        let line = |spec: &String| {
            let (name, version) = spec.split_once('=').expect("a version");
            address(state, name, version)
        };
        return ok(specs.map(line).collect::<String>());
    }
    if let Some(why) = &state.faults.network {
        return failed(100, format!("E: {why}\nE: Unable to fetch some archives\n"));
    }
    let folder = folder.expect("a folder for downloads");
    for spec in specs {
        let (name, version) = spec.split_once('=').expect("a version");
        let version = version.replace(':', "%3a");
        files.put(
            &format!("{folder}/{name}_{version}_amd64.deb"),
            spec.clone(),
        );
    }
    ok("Download complete and in download only mode\n")
}

//! Simulates `apt-cache` and `apt-mark` on the files of the machine.

use gpu_bootstrap::host::{
    Cmd, Output,
    fake::{FakeFiles, failed, ok},
};

use crate::{
    archive::{candidate, offers},
    dpkg,
};

/// `apt-cache`.
pub fn apt_cache(cmd: &Cmd, files: &FakeFiles) -> Output {
    let args: Vec<&str> = cmd.args.iter().map(String::as_str).collect();
    match args[..] {
        ["policy", "--", ..] => ok(args[2..]
            .iter()
            .map(|name| policy(files, name))
            .collect::<String>()),
        ["pkgnames", "--", prefix] => ok(crate::archive::names(files)
            .into_iter()
            .filter(|name| name.starts_with(prefix))
            .map(|name| name + "\n")
            .collect::<String>()),
        _ => panic!("the simulated apt-cache does not support `{}`", cmd.line()),
    }
}

fn policy(files: &FakeFiles, name: &str) -> String {
    let now = dpkg::installed(files, name);
    let offers = offers(files, name);
    if now.is_none() && offers.is_empty() {
        return String::new();
    }
    let best = candidate(files, name, now.as_deref()).map(|offer| offer.version);
    let or_none = |version: Option<&str>| version.unwrap_or("(none)").to_owned();
    let mut said = format!(
        "{name}:\n  Installed: {}\n  Candidate: {}\n  Version table:\n",
        or_none(now.as_deref()),
        or_none(best.as_deref())
    );
    for offer in &offers {
        let mark = if now.as_deref() == Some(&offer.version) {
            " *** "
        } else {
            "     "
        };
        said.push_str(&format!(
            "{mark}{} {}\n        {} {} Packages\n",
            offer.version, offer.priority, offer.rank, offer.repo
        ));
    }
    if let Some(now) = &now
        && !offers.iter().any(|offer| offer.version == *now)
    {
        said.push_str(&format!(
            " *** {now} 100\n        100 /var/lib/dpkg/status\n"
        ));
    }
    said
}

/// `apt-mark`.
pub fn apt_mark(cmd: &Cmd, files: &FakeFiles) -> Output {
    let args: Vec<&str> = cmd.args.iter().map(String::as_str).collect();
    let [verb, "--", ref names @ ..] = args[..] else {
        panic!("the simulated apt-mark does not support `{}`", cmd.line());
    };
    let mut database = dpkg::read(files);
    let mut auto = dpkg::auto(files);
    for name in names {
        let Some(entry) = database.get_mut(*name) else {
            return failed(100, format!("E: Unable to locate package {name}\n"));
        };
        match verb {
            "hold" => entry.want = "hold".to_owned(),
            "unhold" => entry.want = "install".to_owned(),
            "auto" => auto.push((*name).to_owned()),
            verb => panic!("the simulated apt-mark does not support `{verb}`"),
        }
    }
    match verb {
        "hold" | "unhold" => dpkg::write(files, &database),
        _ => dpkg::set_auto(files, auto),
    }
    ok("")
}

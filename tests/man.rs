//! The manual pages are generated from the command line definition and the settings table.

use std::{fs, path::Path};

use clap::Command;
use gpu_bootstrap::{cli::help, config::reference, report::settings};
use roff::{Roff, bold, roman};

/// The page of the settings file.
fn settings_page() -> String {
    let mut page = Roff::new();
    page.control("TH", ["gpu-bootstrap.toml", "5"]);
    page.control("SH", ["NAME"]);
    page.text([roman("gpu-bootstrap.toml - settings of gpu-bootstrap")]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman(
        "No settings are needed: the operating system selects a profile, and the GPUs select a driver. Settings override \
         single decisions. They are TOML; a later source overrides an earlier one: /etc/gpu-bootstrap/config.toml, \
         /etc/gpu-bootstrap/config.d/*.toml in the order of their names, files given with --config, the environment, and \
         --set KEY=VALUE. `gpu-bootstrap config --defaults` prints all settings as such a file.",
    )]);
    page.control("SH", ["KEYS"]);
    for row in reference::rows() {
        page.control("TP", []);
        page.text([bold(&row.name)]);
        let default = row.value().map(|value| format!(" Default: {value}."));
        page.text([roman(
            settings::sentences(row) + &default.unwrap_or_default(),
        )]);
    }
    page.control("SH", ["SEE ALSO"]);
    page.text([bold("gpu-bootstrap"), roman("(1)")]);
    page.render()
}

/// The sections of a command, with the name of its page, that are not generated from its definition.
fn sections(command: &str) -> String {
    let mut page = Roff::new();
    let name = command.strip_prefix("gpu-bootstrap-").unwrap_or_default();
    for section in help::sections(name) {
        page.control("SH", [section.title.to_uppercase().as_str()]);
        for (term, text) in section.rows {
            page.control("TP", []);
            page.text([bold(term.replace("\\\n      ", ""))]);
            page.text([roman(text)]);
        }
    }
    page.control("SH", ["SEE ALSO"]);
    let other = if name.is_empty() {
        "gpu-bootstrap-install"
    } else {
        "gpu-bootstrap"
    };
    page.text([
        bold(other),
        roman("(1), "),
        bold("gpu-bootstrap.toml"),
        roman("(5)"),
    ]);
    page.to_roff()
}

/// A command and its visible subcommands.
fn shown(command: &Command) -> Vec<Command> {
    let below = (command.get_subcommands())
        .filter(|one| !one.is_hide_set() && one.get_name() != "help")
        .flat_map(shown);
    std::iter::once(command.clone()).chain(below).collect()
}

/// The pages by file name: the program, each visible command, and the settings file.
fn pages() -> Vec<(String, String)> {
    let mut program = help::documented();
    program.build();
    shown(&program)
        .into_iter()
        .map(|command| {
            let name = command
                .get_display_name()
                .unwrap_or(command.get_name())
                .to_owned();
            let mut page = Vec::new();
            let further = sections(&name);
            clap_mangen::Man::new(command.after_long_help(None::<&str>))
                .render(&mut page)
                .expect("a rendered page");
            let page = String::from_utf8(page).expect("a page is UTF-8");
            (format!("{name}.1"), page + &further)
        })
        .chain([("gpu-bootstrap.toml.5".to_owned(), settings_page())])
        .collect()
}

#[test]
fn manual_pages_are_current() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/man");
    let pages = pages();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::create_dir_all(&directory).unwrap();
        for (name, page) in &pages {
            fs::write(directory.join(name), page).unwrap();
        }
    }
    for (name, page) in &pages {
        let kept = fs::read_to_string(directory.join(name)).unwrap_or_default();
        assert!(kept == *page, "docs/man/{name} is stale; run `make update`");
    }
    let files = fs::read_dir(&directory).unwrap().count();
    assert_eq!(files, pages.len(), "docs/man has pages without a command");
}

#[test]
fn every_page_has_its_name_and_options() {
    let pages = pages();
    let page = |name: &str| &pages.iter().find(|page| page.0 == name).unwrap().1;
    assert!(page("gpu-bootstrap.1").contains("gpu\\-bootstrap\\-install(1)"));
    assert!(page("gpu-bootstrap-check.1").contains("\\-\\-verbose"));
    for (name, page) in pages.iter().filter(|(name, _)| name.ends_with(".1")) {
        for section in [
            "\"EXIT STATUS\"",
            "ENVIRONMENT",
            "FILES",
            "EXAMPLES",
            "\"SEE ALSO\"",
        ] {
            // `explain` reads no files.
            let omitted = section == "FILES" && name == "gpu-bootstrap-explain.1";
            let found = page.contains(&format!("\n.SH {section}\n"));
            assert_eq!(found, !omitted, "{name}: {section}");
        }
    }
    assert!(page("gpu-bootstrap.toml.5").contains("driver.branch"));
}

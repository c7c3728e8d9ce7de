//! The page about all findings is made from the registry.

use std::{fmt::Write as _, fs, path::Path};

use gpu_bootstrap::model::findings::{Layer, rows};

/// The page.
fn page() -> String {
    let mut page = String::from(
        "<!-- Made from src/model/findings.toml by `make update`. -->\n\n# The findings of `check`\n\nBy layer, from the bottom of a \
         node to its top. `gpu-bootstrap explain ID` prints the same for one of them, and a command that shows more.\n",
    );
    for layer in Layer::ALL {
        write!(
            page,
            "\n## {}\n\n| finding | looks at | fails | warns | remedy |\n|---|---|---|---|---|\n",
            layer.name()
        )
        .expect("memory takes it");
        for row in rows().iter().filter(|row| row.layer == layer) {
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            let looks = match &row.source {
                Some(source) => format!("{} [Source]({source})", row.looks),
                None => row.looks.clone(),
            };
            writeln!(
                page,
                "| `{}`<br>{} | {looks} | {} | {} | {} |",
                row.id,
                row.title,
                text(&row.fails),
                text(&row.warns),
                row.remedy.name()
            )
            .expect("memory takes it");
        }
    }
    page
}

#[test]
fn the_page_is_current() {
    let page = page();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/findings.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &page).expect("the page can be written");
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == page, "docs/findings.md is stale; run `make update`");
}

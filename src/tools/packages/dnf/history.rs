//! The history of dnf, which shows the packages of an interrupted transaction. They may be in the rpm database although their
//! scripts did not run.

/// Returns the `NAME-EPOCH:VERSION-RELEASE.ARCHITECTURE` of the packages that the last transaction installed, if it was
/// interrupted. Otherwise the result is empty.
pub fn unfinished(text: &str) -> Vec<String> {
    // For a completed transaction, the line `End rpmdb` contains the resulting state of the rpm database.
    let ended = (text.lines())
        .find_map(|line| line.strip_prefix("End rpmdb"))
        .is_some_and(|rest| rest.trim_start_matches([' ', ':', '*']).trim() != "");
    if ended {
        return Vec::new();
    }
    let mut packages = Vec::new();
    for line in text.lines() {
        let line = line.trim_start_matches([' ', '*']);
        let Some((action, rest)) = line.split_once(char::is_whitespace) else {
            continue;
        };
        if ["Install", "Upgrade", "Reinstall", "Downgrade"].contains(&action)
            && let Some(package) = rest.split_whitespace().next()
            && rest.contains(" @")
        {
            packages.push(package.to_owned());
        }
    }
    packages
}

#[cfg(test)]
mod tests {
    use super::unfinished;
    use crate::model::text::reads_any_text;

    const INTERRUPTED: &str = include_str!("fixtures/history-interrupted.txt");

    #[test]
    fn interrupted_transaction_lists_its_packages() {
        assert_eq!(unfinished(INTERRUPTED), ["slow-2-1.x86_64"]);
        let ended = INTERRUPTED.replace("End rpmdb      :  **", "End rpmdb      : fd9ac9");
        assert!(unfinished(&ended).is_empty());
        assert!(unfinished("No transactions\n").is_empty());
    }

    reads_any_text!("(.|\n)*", |text| unfinished(&text));
}

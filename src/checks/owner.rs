//! Reports the program that manages the driver, if it is not gpu-bootstrap.

use crate::{
    check::{Family, Finding, Subject, Verdict},
    model::id::Id,
    state::owner,
    step::StepError,
};

const OWNER: Id = Id::new("os.managed");

/// The `os.managed` check.
pub(super) const FAMILY: Family = Family {
    ids: || vec![OWNER],
    examine: |subject| Box::pin(examine(subject)),
};

async fn examine(subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
    let finding = |status, why: String| Finding::new(OWNER, status, why);
    Ok(vec![match owner(subject.host.files(), subject.facts)? {
        None => finding(
            Verdict::Skip,
            "no other program manages the driver".to_owned(),
        ),
        Some(owner) => finding(
            Verdict::Pass,
            format!("{} ({}): {}", owner.name, owner.evidence, owner.why),
        ),
    }])
}

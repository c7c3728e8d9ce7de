//! Whose driver the machine has, where somebody else manages it.

use async_trait::async_trait;

use crate::{
    check::{Check, Finding, Subject, Verdict},
    model::id::Id,
    state::owner,
    step::StepError,
};

const OWNER: Id = Id::new("os.managed");

/// See the module.
pub struct OwnerCheck;

#[async_trait]
impl Check for OwnerCheck {
    fn ids(&self) -> &[Id] {
        const { &[OWNER] }
    }

    async fn examine(&self, subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
        let say = |status, why: String| Finding::new(OWNER, status, why);
        Ok(vec![match owner(subject.host.files(), subject.facts)? {
            None => say(
                Verdict::Skip,
                "nothing shows that somebody else manages it".to_owned(),
            ),
            Some(owner) => say(
                Verdict::Pass,
                format!("{} ({}): {}", owner.name, owner.evidence, owner.why),
            ),
        }])
    }
}

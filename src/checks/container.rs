//! Whether this is a container: then what is found concerns its files, and the kernel and the GPUs
//! of its host.

use async_trait::async_trait;

use crate::{
    check::{Check, Finding, Subject, Verdict},
    facts::Facts,
    model::id::Id,
    step::StepError,
};

const CONTAINER: Id = Id::new("virt.container");

/// See the module.
pub struct ContainerCheck;

fn decide(facts: &Facts) -> Finding {
    let finding = |status, why: String, remedy: Option<&str>| Finding {
        observed: facts.virtualization.clone(),
        remedy: remedy.map(str::to_owned),
        ..Finding::new(CONTAINER, status, why)
    };
    match facts.container() {
        Some(manager) => finding(
            Verdict::Warn,
            format!(
                "this is a container (`{manager}`): it sees the kernel and the GPUs of its host, but \
                 not the packages and services there"
            ),
            Some(
                "check the host: run `gpu-bootstrap check` there, or mount its `/` into the \
                 container and add `--root` with that folder",
            ),
        ),
        None => finding(Verdict::Skip, "this is no container".into(), None),
    }
}

#[async_trait]
impl Check for ContainerCheck {
    fn ids(&self) -> &[Id] {
        const { &[CONTAINER] }
    }

    async fn examine(&self, subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
        Ok(vec![decide(subject.facts)])
    }
}

#[cfg(test)]
mod tests {
    use super::decide;
    use crate::{check::Verdict, steps::fixtures::facts};

    #[test]
    fn inside_a_container_a_warning_names_the_manager() {
        let mut facts = facts();
        for (word, verdict) in [
            (None, Verdict::Skip),
            (Some("none"), Verdict::Skip),
            (Some("kvm"), Verdict::Skip),
            (Some("docker"), Verdict::Warn),
            (Some("systemd-nspawn"), Verdict::Warn),
            (Some("container-other"), Verdict::Warn),
        ] {
            facts.virtualization = word.map(str::to_owned);
            let finding = decide(&facts);
            assert_eq!(finding.status, verdict, "{word:?}");
            let manager = word.filter(|_| verdict == Verdict::Warn);
            let named = manager.map(|manager| format!("`{manager}`"));
            let said = named.as_deref().unwrap_or("this is no container");
            assert!(finding.why.contains(said), "{}", finding.why);
        }
    }
}

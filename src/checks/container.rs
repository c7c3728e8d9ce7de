//! Whether this process sees the machine as it is. In a container, what is found concerns its files, and the kernel and the
//! GPUs of its host. A unit can have other files and devices than the machine, too.

use async_trait::async_trait;

use crate::{
    check::{Check, Finding, Subject, Verdict},
    facts::Facts,
    model::id::Id,
    state::view::Sandbox,
    step::StepError,
};

const CONTAINER: Id = Id::new("virt.container");

/// See the module.
pub struct ContainerCheck;

fn decide(facts: &Facts, sandbox: Option<&Sandbox>) -> Finding {
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
        None => match sandbox {
            Some(sandbox) => finding(Verdict::Fail, sandbox.to_string(), Some(&sandbox.remedy())),
            None => finding(Verdict::Skip, "this is no container".into(), None),
        },
    }
}

#[async_trait]
impl Check for ContainerCheck {
    fn ids(&self) -> &[Id] {
        const { &[CONTAINER] }
    }

    async fn examine(&self, subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
        let sandbox = match subject.facts.container() {
            Some(_) => None,
            None => subject.state.sandbox().await?,
        };
        Ok(vec![decide(subject.facts, sandbox.as_ref())])
    }
}

#[cfg(test)]
mod tests {
    use super::decide;
    use crate::{
        check::Verdict, host::view::PrivateView, state::view::Sandbox, steps::fixtures::facts,
    };

    #[test]
    fn a_unit_with_its_own_devices_fails() {
        let sandbox = Sandbox {
            view: PrivateView {
                unit: Some("setup.service".into()),
                devices: true,
                ..PrivateView::default()
            },
            settings: vec!["PrivateDevices=yes".into()],
        };
        let finding = decide(&facts(), Some(&sandbox));
        assert_eq!(finding.status, Verdict::Fail);
        assert_eq!(
            finding.why,
            "`setup.service` has a private view of the machine: a private `/dev`, caused by `PrivateDevices=yes`"
        );
    }

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
            let finding = decide(&facts, None);
            assert_eq!(finding.status, verdict, "{word:?}");
            let manager = word.filter(|_| verdict == Verdict::Warn);
            let named = manager.map(|manager| format!("`{manager}`"));
            let said = named.as_deref().unwrap_or("this is no container");
            assert!(finding.why.contains(said), "{}", finding.why);
        }
    }
}

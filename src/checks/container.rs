//! Checks whether this process sees the real machine. A container has its own files, but the kernel and GPUs of its host. A
//! systemd unit can also have private files and devices.

use crate::{
    check::{Family, Finding, Subject, Verdict},
    facts::Facts,
    model::id::Id,
    state::view::Sandbox,
    step::StepError,
};

const CONTAINER: Id = Id::new("virt.container");

/// The `virt.container` check.
pub(super) const FAMILY: Family = Family {
    ids: || vec![CONTAINER],
    examine: |subject| Box::pin(examine(subject)),
};

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
                "this is a container (`{manager}`) with the kernel and GPUs of its host, but without \
                 the packages and services of the host"
            ),
            Some(
                "check the host: run `gpu-bootstrap check` there, or mount its `/` into the \
                 container and specify this directory with `--root`",
            ),
        ),
        None => match sandbox {
            Some(sandbox) => finding(Verdict::Fail, sandbox.to_string(), Some(&sandbox.remedy())),
            None => finding(Verdict::Skip, "not a container".into(), None),
        },
    }
}

async fn examine(subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
    let sandbox = match subject.facts.container() {
        Some(_) => None,
        None => subject.state.sandbox().await?,
    };
    Ok(vec![decide(subject.facts, sandbox.as_ref())])
}

#[cfg(test)]
mod tests {
    use super::decide;
    use crate::{
        check::Verdict, host::view::PrivateView, state::view::Sandbox, steps::fixtures::facts,
    };

    #[test]
    fn unit_with_private_devices_fails() {
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
    fn container_warning_contains_the_manager() {
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
            let said = named.as_deref().unwrap_or("not a container");
            assert!(finding.why.contains(said), "{}", finding.why);
        }
    }
}

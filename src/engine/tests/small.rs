//! Small steps: each one is a closure that reads a fake machine.

use std::{
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use camino::Utf8Path;

use super::reading::satisfied;
use crate::{
    change::{Change, Lock},
    config::desired::PackageSpec,
    host::Reader,
    model::id::Id,
    step::{Assessment, Step, StepError},
};

/// A step based on a closure.
#[derive(Clone)]
pub struct Small(pub Step);

pub fn step(
    id: &'static str,
    decide: impl Fn(Reader<'_>) -> Assessment + Send + Sync + 'static,
) -> Small {
    fallible(id, move |host| Ok(decide(host)))
}

fn fallible(
    id: &'static str,
    decide: impl Fn(Reader<'_>) -> Result<Assessment, StepError> + Send + Sync + 'static,
) -> Small {
    Small(Step::new(Id::new(id), move |cx| {
        Box::pin(ready(decide(cx.host)))
    }))
}

/// Requires packages, which are files in `/packages`.
pub fn packages(id: &'static str, names: &'static [&'static str]) -> Small {
    let step = step(id, move |host| {
        let there = |name: &&str| exists(host, &format!("/packages/{name}"));
        if names.iter().all(there) {
            return satisfied("all installed");
        }
        needs(vec![Change::RefreshRepositories, install(names)])
    });
    step.locks(&[Lock::Packages])
}

/// Requires a file with this content.
pub fn file(id: &'static str, path: &'static str, content: &'static str) -> Small {
    step(id, move |host| {
        match host.files().read_text(Utf8Path::new(path)) {
            Ok(Some(there)) if there == content => satisfied("the content matches"),
            Ok(there) => needs_why(
                &format!("content is {there:?}, expected {content:?}"),
                vec![write(path, content)],
            ),
            Err(error) => panic!("{error}"),
        }
    })
}

pub fn fixed(id: &'static str, answer: Assessment) -> Small {
    step(id, move |_| answer.clone())
}

impl Small {
    pub fn after(self, ids: &[&'static str]) -> Self {
        Self(self.0.after(ids.iter().map(|id| Id::new(id))))
    }

    /// Removes the step from the settings.
    pub fn reduce(&mut self) {
        self.0.wants = Arc::new(|_, _| false);
        let why = "not configured".to_owned();
        self.answers(Assessment::NotApplicable { why });
    }

    /// Makes the step not applicable, as on a machine without a GPU.
    pub fn has_no_gpu(&mut self) {
        let why = "no driver is configured".to_owned();
        self.answers(Assessment::NotApplicable { why });
    }

    fn answers(&mut self, answer: Assessment) {
        self.0.assess = fixed("", answer).0.assess;
    }

    /// Stores in `are_new` before each assessment whether the package lists are new.
    pub fn tells_lists(mut self, are_new: Arc<AtomicBool>) -> Self {
        let assess = self.0.assess;
        self.0.assess = Arc::new(move |cx| {
            are_new.store(cx.state.lists_are_new(), Ordering::SeqCst);
            assess(cx)
        });
        self
    }

    /// Makes the assessment fail.
    pub fn fails(&mut self) {
        let failed = fallible("", |_| {
            Err(StepError::Unexpected {
                what: "the tool".to_owned(),
                why: "no output".to_owned(),
            })
        });
        self.0.assess = failed.0.assess;
    }

    /// Marks the step as long.
    pub fn long(self) -> Self {
        Self(self.0.long())
    }

    pub fn locks(self, locks: &[Lock]) -> Self {
        Self(self.0.locks(locks))
    }
}

pub fn exists(host: Reader<'_>, path: &str) -> bool {
    host.files().exists(Utf8Path::new(path)).unwrap()
}

pub fn needs(changes: Vec<Change>) -> Assessment {
    needs_why("missing", changes)
}

fn needs_why(why: &str, changes: Vec<Change>) -> Assessment {
    Assessment::Needs {
        why: why.to_owned(),
        changes,
    }
}

/// Requires only a reboot.
pub fn reboots(why: &str) -> Assessment {
    needs(vec![Change::Reboot {
        why: why.to_owned(),
    }])
}

pub fn write(path: &str, content: &str) -> Change {
    Change::WriteFile {
        path: path.into(),
        content: content.to_owned(),
        mode: 0o644,
        over: None,
    }
}

pub fn install(names: &[&str]) -> Change {
    Change::InstallPackages {
        packages: specs(names),
        removing: Vec::new(),
        later: false,
    }
}

pub fn specs(names: &[&str]) -> Vec<PackageSpec> {
    let spec = |name: &&str| PackageSpec {
        name: (*name).to_owned(),
        version: None,
    };
    names.iter().map(spec).collect()
}

//! Small steps: each one is a closure that reads a fake machine.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use camino::Utf8Path;

use super::reading::satisfied;
use crate::{
    change::{Change, Lock},
    config::desired::{Desired, PackageSpec},
    host::Reader,
    model::id::{Id, StepId},
    step::{Assessment, Cx, Step, StepError},
};

type Decide = Arc<dyn Fn(Reader<'_>) -> Result<Assessment, StepError> + Send + Sync>;

/// A step based on a closure.
#[derive(Clone)]
pub struct Small {
    id: StepId,
    after: Vec<StepId>,
    locks: Vec<Lock>,
    long: bool,
    unwanted: bool,
    /// Set before each assessment to whether the package lists are new.
    lists: Option<Arc<AtomicBool>>,
    decide: Decide,
}

pub fn step(
    id: &'static str,
    decide: impl Fn(Reader<'_>) -> Assessment + Send + Sync + 'static,
) -> Small {
    Small {
        id: Id::new(id),
        after: Vec::new(),
        locks: Vec::new(),
        long: false,
        unwanted: false,
        lists: None,
        decide: Arc::new(move |host| Ok(decide(host))),
    }
}

/// Requires packages, which are files in `/packages`.
pub fn packages(id: &'static str, names: &'static [&'static str]) -> Small {
    let mut step = step(id, move |host| {
        let there = |name: &&str| exists(host, &format!("/packages/{name}"));
        if names.iter().all(there) {
            return satisfied("all installed");
        }
        needs(vec![Change::RefreshRepositories, install(names)])
    });
    step.locks = vec![Lock::Packages];
    step
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
    pub fn after(mut self, ids: &[&'static str]) -> Self {
        self.after = ids.iter().map(|id| Id::new(id)).collect();
        self
    }

    /// Removes the step from the settings.
    pub fn reduce(&mut self) {
        self.unwanted = true;
        let why = "not configured".to_owned();
        self.decide = fixed("", Assessment::NotApplicable { why }).decide;
    }

    /// Makes the step not applicable, as on a machine without a GPU.
    pub fn has_no_gpu(&mut self) {
        let why = "no driver is configured".to_owned();
        self.decide = fixed("", Assessment::NotApplicable { why }).decide;
    }

    /// Stores in `are_new` before each assessment whether the package lists are new.
    pub fn tells_lists(mut self, are_new: Arc<AtomicBool>) -> Self {
        self.lists = Some(are_new);
        self
    }

    /// Makes the assessment fail.
    pub fn fails(&mut self) {
        self.decide = Arc::new(|_| {
            Err(StepError::Unexpected {
                what: "the tool".to_owned(),
                why: "no output".to_owned(),
            })
        });
    }

    /// Marks the step as long.
    pub fn long(mut self) -> Self {
        self.long = true;
        self
    }

    pub fn locks(mut self, locks: &[Lock]) -> Self {
        self.locks = locks.to_vec();
        self
    }
}

#[async_trait]
impl Step for Small {
    fn id(&self) -> StepId {
        self.id.clone()
    }

    fn after(&self) -> &[StepId] {
        &self.after
    }

    fn locks(&self) -> &[Lock] {
        &self.locks
    }
    fn is_long(&self) -> bool {
        self.long
    }

    fn wants(&self, _: &Change, _: &Desired) -> bool {
        !self.unwanted
    }

    async fn assess(&self, cx: &Cx<'_>) -> Result<Assessment, StepError> {
        if let Some(lists) = &self.lists {
            lists.store(cx.state.lists_are_new(), Ordering::SeqCst);
        }
        (self.decide)(cx.host)
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

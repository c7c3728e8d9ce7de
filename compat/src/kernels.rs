//! Determines which kernels of a machine need a driver module, which can get one, and which kernel could be installed to get one.
//! A pure function of kernel names.

use std::{collections::BTreeSet, fmt};

use serde::{Deserialize, Serialize};

use crate::version::KernelVersion;

/// The kernel policy: which kernels may be installed for the driver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum KernelPolicy {
    /// Only installed kernels are used.
    No,
    /// A newer kernel of the same series and flavor, such as 6.8 and `aws`.
    #[default]
    SameSeries,
    /// A newer kernel of any series, of the same flavor.
    Any,
}

impl fmt::Display for KernelPolicy {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::No => "no",
            Self::SameSeries => "same-series",
            Self::Any => "any",
        })
    }
}

/// The kernels of a machine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Kernels {
    /// The running one.
    pub running: Option<KernelVersion>,
    /// The kernel of the next boot.
    pub next: Option<KernelVersion>,
    /// All that are installed.
    pub installed: Vec<KernelVersion>,
    /// The machine becomes an image, so no instance runs the current kernel.
    pub image: bool,
}

impl Kernels {
    /// Returns the kernels that need a module: the running kernel and the kernel of the next boot.
    ///
    /// A running kernel without files is ignored: it was removed by an upgrade, or it is the kernel of a container host. The
    /// kernel of an image builder is also ignored. If the kernel of the next boot is unknown, the running kernel always counts.
    pub fn needed(&self) -> Vec<KernelVersion> {
        let is_installed =
            |one: &&KernelVersion| self.installed.is_empty() || self.installed.contains(one);
        let running = (self.running.as_ref())
            .filter(|one| self.next.is_none() || (!self.image && is_installed(one)));
        let mut needed: Vec<KernelVersion> =
            running.into_iter().chain(&self.next).cloned().collect();
        needed.dedup();
        needed
    }

    /// Returns the kernel that a newly installed kernel would replace: the one of the next boot.
    pub fn base(&self) -> Option<KernelVersion> {
        self.needed().pop()
    }
}

/// An install method for the driver module.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KernelMethod {
    /// The module is compiled on the machine. Otherwise it is packaged for the kernel.
    pub compiled: bool,
    /// All its packages are installed, for every kernel that needs a module.
    pub complete: bool,
    /// Its packages that do not depend on the kernel are installed: the method was used before.
    pub begun: bool,
    /// The kernels for which all its packages are available or installed.
    pub kernels: BTreeSet<KernelVersion>,
    /// The reason if the method is not possible on this machine.
    pub closed: Option<String>,
}

/// The inputs of the decision.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KernelQuestion {
    /// The kernels of the machine.
    pub kernels: Kernels,
    /// Which kernels may be installed.
    pub policy: KernelPolicy,
    /// The kernels that can be installed.
    pub images: BTreeSet<KernelVersion>,
    /// The install methods, preferred first.
    pub methods: Vec<KernelMethod>,
}

/// The decision. `method` is an index into [`KernelQuestion::methods`].
#[derive(Debug, Clone, PartialEq)]
pub enum KernelAnswer {
    /// The kernels of the machine are unknown.
    Unknown,
    /// The kernels of the machine can get a module.
    Here {
        /// The install method.
        method: usize,
    },
    /// Only the kernel of the next boot can get a module.
    Boot {
        /// The install method.
        method: usize,
        /// That kernel.
        kernel: KernelVersion,
    },
    /// A kernel that is not installed yet can get a module.
    Install {
        /// The install method.
        method: usize,
        /// That kernel.
        kernel: KernelVersion,
        /// Its series differs from the kernel of the machine.
        other_series: bool,
    },
    /// No kernel can get a module.
    Refused(Refused),
}

/// The reasons that no kernel can get a module, and the remedy.
#[derive(Debug, Clone, PartialEq)]
pub struct Refused {
    /// The kernels that need a module and cannot get one with the preferred method.
    pub without: Vec<KernelVersion>,
    /// The most restrictive policy that would allow a kernel, and that kernel.
    pub with: Option<(KernelPolicy, KernelVersion)>,
    /// The reason that excludes the first method that would otherwise work. Empty if there is no such method.
    pub closed: Vec<String>,
}

impl KernelAnswer {
    /// Returns the number of reboots that the decision requires.
    pub const fn reboots(&self, image: bool) -> u32 {
        match self {
            Self::Boot { .. } | Self::Install { .. } if !image => 1,
            _ => 0,
        }
    }
}

impl KernelQuestion {
    /// Keeps a complete method. Otherwise, selects the first possible option. Methods are tried in order of preference, but one
    /// that was used before is tried first.
    ///
    /// 1. A module for all kernels that need one, or only for the kernel of the next boot.
    /// 2. A kernel of the same series that is not installed yet, with the same method.
    /// 3. Options 1 and 2 with the next method.
    /// 4. A kernel of another series.
    ///
    /// The policy must allow a kernel that is not installed yet.
    pub fn answer(&self) -> KernelAnswer {
        if self.kernels.needed().is_empty() {
            return KernelAnswer::Unknown;
        }
        // Keep a complete method, even if a preferred one becomes possible later.
        let complete = |method: &KernelMethod| method.complete;
        if let Some(method) = self.methods.iter().position(complete) {
            return KernelAnswer::Here { method };
        }
        self.found(self.policy, false)
            .unwrap_or_else(|| KernelAnswer::Refused(self.refused()))
    }

    fn found(&self, policy: KernelPolicy, also_closed: bool) -> Option<KernelAnswer> {
        let open = || {
            let begun = (self.methods.iter().enumerate()).filter(|(_, method)| method.begun);
            let others = (self.methods.iter().enumerate()).filter(|(_, method)| !method.begun);
            (begun.chain(others)).filter(move |(_, method)| also_closed || method.closed.is_none())
        };
        let without_another_series = open().find_map(|(at, method)| {
            let installed = || {
                (policy >= KernelPolicy::SameSeries).then(|| self.installed(at, method, false))?
            };
            self.here(at, method).or_else(installed)
        });
        // If the kernel of the next boot is unknown, the machine may boot another kernel, so prefer an option without a reboot.
        let is_guess = |answer: &KernelAnswer| {
            matches!(answer, KernelAnswer::Boot { .. }) && self.kernels.next.is_none()
        };
        let without_another_series = match without_another_series {
            Some(guess) if is_guess(&guess) => open()
                .filter_map(|(at, method)| self.here(at, method))
                .find(|answer| !is_guess(answer))
                .or(Some(guess)),
            answer => answer,
        };
        let another_series = || {
            (policy == KernelPolicy::Any)
                .then(|| open().find_map(|(at, method)| self.installed(at, method, true)))?
        };
        without_another_series.or_else(another_series)
    }

    fn here(&self, at: usize, method: &KernelMethod) -> Option<KernelAnswer> {
        let needed = self.kernels.needed();
        if needed.iter().all(|kernel| method.kernels.contains(kernel)) {
            return Some(KernelAnswer::Here { method: at });
        }
        // A boot loader usually starts the newest kernel.
        let unknown = self.kernels.next.is_none();
        let running = self.kernels.running.as_ref();
        let newest = (self.kernels.installed.iter())
            .filter(|kernel| unknown && running.is_some_and(|running| *kernel > running))
            .filter(|kernel| running.and_then(|one| one.flavor()) == kernel.flavor())
            .max();
        let next = (newest.or(needed.last())).filter(|next| method.kernels.contains(next))?;
        Some(KernelAnswer::Boot {
            method: at,
            kernel: next.clone(),
        })
    }

    /// Returns the newest kernel of the same flavor that can be installed, has a module, and is newer than all installed kernels,
    /// so that the boot loader starts it.
    fn installed(
        &self,
        at: usize,
        method: &KernelMethod,
        other_series: bool,
    ) -> Option<KernelAnswer> {
        let base = self.kernels.base()?;
        let is_passed_over =
            |there: &KernelVersion| there.flavor() == base.flavor() && *there > base;
        if self.kernels.next.is_some() && self.kernels.installed.iter().any(is_passed_over) {
            // This boot loader does not start the newest kernel, so it would not start a new one either.
            return None;
        }
        let newer = |kernel: &&KernelVersion| {
            (self.kernels.installed.iter().chain([&base]))
                .all(|there| there.flavor() != base.flavor() || *kernel > there)
        };
        let kernel = (method.kernels.intersection(&self.images))
            .filter(|kernel| kernel.flavor() == base.flavor())
            .filter(|kernel| (kernel.series() == base.series()) != other_series)
            .filter(newer)
            .max()?;
        Some(KernelAnswer::Install {
            method: at,
            kernel: kernel.clone(),
            other_series,
        })
    }

    fn refused(&self) -> Refused {
        let needed = self.kernels.needed();
        let has = |kernel: &KernelVersion| {
            (self.methods.first()).is_some_and(|method| method.kernels.contains(kernel))
        };
        let with = [KernelPolicy::SameSeries, KernelPolicy::Any]
            .into_iter()
            .filter(|policy| *policy > self.policy)
            .find_map(|policy| match self.found(policy, false)? {
                KernelAnswer::Install { kernel, .. } => Some((policy, kernel)),
                _ => None,
            });
        let closed = match self.found(self.policy, true) {
            Some(
                KernelAnswer::Here { method }
                | KernelAnswer::Boot { method, .. }
                | KernelAnswer::Install { method, .. },
            ) => self.methods[method].closed.iter().cloned().collect(),
            _ => Vec::new(),
        };
        Refused {
            without: needed.into_iter().filter(|kernel| !has(kernel)).collect(),
            with,
            closed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernels(list: &[&str]) -> BTreeSet<KernelVersion> {
        list.iter().map(|one| version(one)).collect()
    }

    fn version(text: &str) -> KernelVersion {
        text.parse().expect("a kernel")
    }

    fn method(compiled: bool, list: &[&str]) -> KernelMethod {
        KernelMethod {
            compiled,
            kernels: kernels(list),
            ..KernelMethod::default()
        }
    }

    /// A machine that runs one kernel and boots another. The archive has modules and headers for some kernels, all of which can
    /// be installed.
    fn question(running: &str, next: &str, packaged: &[&str], headers: &[&str]) -> KernelQuestion {
        let both = [version(running), version(next)];
        KernelQuestion {
            kernels: Kernels {
                running: Some(both[0].clone()),
                next: Some(both[1].clone()),
                installed: both.to_vec(),
                image: false,
            },
            policy: KernelPolicy::SameSeries,
            images: kernels(packaged)
                .union(&kernels(headers))
                .cloned()
                .collect(),
            methods: vec![method(false, packaged), method(true, headers)],
        }
    }

    const PACKAGED: usize = 0;
    const COMPILED: usize = 1;

    fn boot(kernel: &str, method: usize) -> KernelAnswer {
        let kernel = version(kernel);
        KernelAnswer::Boot { method, kernel }
    }

    fn install(kernel: &str, method: usize) -> KernelAnswer {
        KernelAnswer::Install {
            method,
            kernel: version(kernel),
            other_series: false,
        }
    }

    /// The policy that would allow a kernel, and that kernel.
    fn missing(question: &KernelQuestion) -> Option<(KernelPolicy, String)> {
        match question.answer() {
            KernelAnswer::Refused(Refused { with, .. }) => {
                with.map(|(policy, kernel)| (policy, kernel.to_string()))
            }
            other => panic!("{other:?}"),
        }
    }

    const OLD: &str = "6.8.0-1021-aws";
    const LAST: &str = "6.8.0-1050-aws";
    const NEW: &str = "6.8.0-1051-aws";
    const ROLLING: &str = "7.0.0-1008-aws";
    const OTHERS: [&str; 3] = [
        "6.8.0-130-generic",
        "6.8.0-1060-aws-64k",
        "6.17.0-1004-azure",
    ];

    #[test]
    fn methods_are_tried_in_order() {
        let with = |list: &[&'static str]| [list, &OTHERS].concat();
        let answer = |running, next, packaged: &[&'static str], headers: &[&str]| {
            question(running, next, &with(packaged), headers).answer()
        };
        assert_eq!(
            answer(LAST, LAST, &[LAST, NEW, ROLLING], &[LAST]),
            KernelAnswer::Here { method: PACKAGED }
        );
        assert_eq!(
            answer(OLD, NEW, &[OLD, NEW], &[]),
            KernelAnswer::Here { method: PACKAGED }
        );
        assert_eq!(answer(OLD, NEW, &[NEW], &[OLD, NEW]), boot(NEW, PACKAGED));
        assert_eq!(
            answer(OLD, OLD, &[LAST, NEW, ROLLING], &[OLD]),
            install(NEW, PACKAGED)
        );
        assert_eq!(
            answer(OLD, OLD, &[ROLLING], &[OLD, ROLLING]),
            KernelAnswer::Here { method: COMPILED }
        );
        assert_eq!(answer(OLD, NEW, &[ROLLING], &[NEW]), boot(NEW, COMPILED));
        assert_eq!(answer(OLD, OLD, &[ROLLING], &[NEW]), install(NEW, COMPILED));
        // The kernel is newer than all modules.
        assert_eq!(
            answer(NEW, NEW, &[LAST], &[NEW]),
            KernelAnswer::Here { method: COMPILED }
        );
        assert_eq!(missing(&question(NEW, NEW, &with(&[LAST]), &[])), None);
        assert_eq!(
            missing(&question(OLD, OLD, &with(&[ROLLING]), &[])),
            Some((KernelPolicy::Any, ROLLING.to_owned()))
        );
    }

    #[test]
    fn another_kernel_needs_a_reboot_except_in_images() {
        for (answer, reboots) in [
            (KernelAnswer::Here { method: COMPILED }, 0),
            (boot(NEW, PACKAGED), 1),
            (install(NEW, PACKAGED), 1),
        ] {
            assert_eq!(answer.reboots(false), reboots, "{answer:?}");
            assert_eq!(answer.reboots(true), 0, "{answer:?}");
        }
    }

    #[test]
    fn fixed_boot_entry_prevents_a_new_kernel() {
        let mut asked = question(OLD, OLD, &[NEW], &[]);
        assert!(matches!(asked.answer(), KernelAnswer::Install { .. }));
        asked.kernels.installed.push(version(LAST));
        assert_eq!(missing(&asked), None);
    }

    #[test]
    fn compiling_precedes_a_reboot_into_an_unknown_kernel() {
        let mut asked = question(OLD, NEW, &[NEW], &[OLD, NEW]);
        assert_eq!(asked.answer(), boot(NEW, PACKAGED));
        asked.kernels.next = None;
        assert_eq!(asked.answer(), KernelAnswer::Here { method: COMPILED });
    }

    #[test]
    fn debian_kernel_names_work() {
        let (old, new) = ("6.12.48+deb13-amd64", "6.12.57+deb13-amd64");
        let headers = [new, "6.12.57+deb13-cloud-amd64", "6.17.8+deb13-amd64"];
        let mut asked = question(old, old, &[], &headers);
        assert_eq!(asked.answer(), install(new, COMPILED));
        asked.policy = KernelPolicy::No;
        assert_eq!(
            missing(&asked),
            Some((KernelPolicy::SameSeries, new.to_owned()))
        );
    }

    #[test]
    fn the_policy_limits_new_kernels() {
        let mut asked = question(OLD, OLD, &[NEW, ROLLING], &[]);
        asked.policy = KernelPolicy::No;
        assert_eq!(
            missing(&asked),
            Some((KernelPolicy::SameSeries, NEW.to_owned()))
        );
        let mut another = question(OLD, OLD, &[ROLLING, "6.17.0-1004-aws"], &[]);
        assert_eq!(
            missing(&another),
            Some((KernelPolicy::Any, ROLLING.to_owned()))
        );
        another.policy = KernelPolicy::Any;
        let other_series = true;
        let kernel = version(ROLLING);
        let method = PACKAGED;
        assert_eq!(
            another.answer(),
            KernelAnswer::Install {
                method,
                kernel,
                other_series
            }
        );
        // A kernel of the same series is preferred, even if the policy allows any kernel.
        asked.policy = KernelPolicy::Any;
        assert_eq!(asked.answer(), install(NEW, PACKAGED));
    }

    #[test]
    fn unavailable_or_older_kernels_are_not_selected() {
        let mut asked = question(OLD, OLD, &[NEW], &[]);
        asked.images.clear();
        assert_eq!(missing(&asked), None);
        // GRUB starts the newest kernel of those that are installed.
        let mut asked = question(OLD, OLD, &[LAST], &[]);
        asked.kernels.installed.push(version(NEW));
        assert_eq!(missing(&asked), None);
        // If the boot entry is unknown, the newest kernel is assumed.
        let mut asked = question(OLD, OLD, &[NEW], &[]);
        asked.kernels.next = None;
        assert_eq!(asked.answer(), install(NEW, PACKAGED));
        asked.kernels.installed.push(version(NEW));
        assert_eq!(asked.answer(), boot(NEW, PACKAGED));
    }

    #[test]
    fn an_impossible_method_is_skipped_and_reported() {
        let mut asked = question(OLD, OLD, &[], &[OLD]);
        assert_eq!(asked.answer(), KernelAnswer::Here { method: COMPILED });
        asked.methods[1].closed = Some("Secure Boot is on".to_owned());
        let KernelAnswer::Refused(refused) = asked.answer() else {
            panic!("the method is impossible");
        };
        assert_eq!(refused.closed, ["Secure Boot is on"]);
        assert_eq!(refused.without, [version(OLD)]);
    }

    #[test]
    fn a_complete_method_is_kept() {
        let mut asked = question(LAST, LAST, &[LAST, NEW], &[LAST]);
        asked.methods[1].complete = true;
        assert_eq!(asked.answer(), KernelAnswer::Here { method: COMPILED });
        // A later kernel gets its module with the same method.
        let mut later = question(LAST, NEW, &[LAST, NEW], &[LAST, NEW]);
        later.methods[1].begun = true;
        assert_eq!(later.answer(), KernelAnswer::Here { method: COMPILED });
    }

    #[test]
    fn an_image_needs_a_module_only_for_its_first_boot() {
        let mut asked = question("6.12.1-host", OLD, &[NEW], &[]);
        asked.kernels.image = true;
        assert_eq!(asked.answer(), install(NEW, PACKAGED));
        assert_eq!(KernelQuestion::default().answer(), KernelAnswer::Unknown);
    }
}

//! Selects the driver and its packages: the matrix decides among the versions in the sources of the profile.

use crate::{
    compat::{
        matrix::Matrix,
        pick::{Constraints, NoDriver, Pick, pick},
        rule_result::Rule,
        security,
    },
    config::{
        desired::{
            DriverSpec, ModuleMethod, ModuleOption, PackageSpec, Pin, Prebuilt, Publish, SigningKey,
        },
        error::{Refusal, ResolveError, or_noted},
        file::DriverConfig,
        kernel::{for_its_kernel, template},
        profile::{At, DriverRow, PackageRow, Profile, Release},
        sources::SettingSources,
        template::Placeholders,
        values::Moment,
    },
    facts::{Facts, Os},
    model::{
        gpu::{Flavor, GpuIdentity},
        text::nearest,
        version::{Branch, DriverVersion, KernelVersion},
    },
};

/// The selected driver with its related choices.
pub(super) struct DriverChoice<'p> {
    pub spec: DriverSpec,
    /// The entry of the profile with its packages.
    pub row: &'p DriverRow,
    /// The module methods; the method of `row` is first. Never empty.
    pub methods: Vec<ModuleMethod>,
    pub pin: Option<Pin>,
}

/// The inputs of the driver selection.
pub(super) struct DriverInputs<'a> {
    pub profile: &'a Profile,
    pub release: &'a Release,
    pub config: &'a DriverConfig,
    pub layers: &'a SettingSources,
    pub facts: &'a Facts,
    pub matrix: &'a Matrix,
    pub placeholders: &'a Placeholders,
    pub gpus: Vec<GpuIdentity>,
    pub image: bool,
    /// There is no machine, so any kernel is possible if none is specified.
    pub trial: bool,
}

impl<'a> DriverInputs<'a> {
    /// Selects the driver.
    ///
    /// # Errors
    /// If a setting matches no entry of the profile, or no driver supports the machine.
    pub(super) fn choose(&self) -> Result<DriverChoice<'a>, ResolveError> {
        let wrong = &mut Vec::new();
        or_noted(self.released_cuda(), wrong);
        let signing = or_noted(self.signing(), wrong);
        let prebuilt = or_noted(self.prebuilt(), wrong);
        let publish = or_noted(self.publish(), wrong);
        let picked = self.rows().and_then(|rows| {
            let pick = self.pick(&rows)?;
            Ok((rows, pick))
        });
        let picked = or_noted(picked, wrong);
        let (Some(signing), Some(prebuilt), Some(publish), Some((rows, pick)), true) =
            (signing, prebuilt, publish, picked, wrong.is_empty())
        else {
            return Err(ResolveError::all(std::mem::take(wrong)));
        };
        let fitting = self.fitting(&rows, &pick)?;
        let row = fitting[0];
        let version = self.config.version.clone();
        let companions = self.companions(&row.source, &pick);
        let mut methods: Vec<ModuleMethod> = (fitting.iter())
            // Only entries that need no other repository than `row`, because only the repositories of `row` are added.
            .filter(|other| (other.repositories.iter()).all(|one| row.repositories.contains(one)))
            .map(|row| self.method(row, companions.packages, &pick))
            .collect();
        let other_branches = self.other_branches(&rows, row, &pick);
        methods.extend(
            other_branches
                .iter()
                .map(|pick| self.method(row, companions.packages, pick)),
        );
        if self.config.prebuilt.only {
            methods = (methods.into_iter())
                .map(|method| method.without_compiler(pick.flavor))
                .filter(|method| !method.is_compiled())
                .collect();
        }
        let Some(first) = methods.first() else {
            let why = format!(
                "`driver.source` is `{}`, which has no DKMS package that a package with prebuilt modules could replace",
                row.source
            );
            return Err(self.layers.wrong("driver.prebuilt.only", why, None).into());
        };
        let packages = self.placeholders.for_kernels(&first.packages);
        let compiled_as = first.compiled_as.clone();
        let prebuilt_instead_of =
            (first.prebuilt.as_ref()).map(|(replaced, _)| replaced.name.clone());
        let pin = (!row.pin.is_empty()).then(|| Pin {
            name: "driver".into(),
            packages: row.pin.clone(),
            version: pattern(version.as_ref(), pick.branch),
            priority: Pin::PRIORITY,
        });
        let mut reasons = pick.reasons;
        reasons.push(format!(
            "packages from `{}`, module {}",
            row.source,
            match prebuilt_instead_of {
                Some(_) => "compiled on another machine (`driver.prebuilt.only`)",
                None => row.build.meaning(),
            }
        ));
        if !other_branches.is_empty() {
            let others: Vec<String> = (other_branches.iter())
                .map(|pick| pick.branch.to_string())
                .collect();
            reasons.push(format!(
                "`{}` has modules of only a few branches for each kernel: if {} has none, the first \
                 available branch of {} is used",
                row.source,
                pick.branch,
                others.join(", ")
            ));
        }
        let mut warnings = pick.warnings;
        warnings.extend(companions.warning);
        reasons.extend(companions.reason);
        let branch = pick.branch.to_string();
        Ok(DriverChoice {
            spec: DriverSpec {
                branch: pick.branch,
                version,
                flavor: pick.flavor,
                assumed: pick.assumed,
                source: row.source.clone(),
                alternative: self.alternative(&fitting),
                stream: (row.stream.as_ref()).map(|stream| stream.replace("{branch}", &branch)),
                packages,
                compiled_as,
                module: row.module.clone(),
                load_modules: self.profile.modules.load.clone(),
                existing: self.config.existing.unwrap_or_default(),
                rollback: self.config.rollback.unwrap_or(true),
                vulnerable: self.vulnerable(),
                asked: self.config.branch.is_some() || self.config.version.is_some(),
                reasons,
                warnings,
                companions: companions.software,
                options: self.options(row, pick.branch, pick.flavor),
                signing,
                prebuilt,
                prebuilt_instead_of,
                publish,
            },
            row,
            methods,
            pin,
        })
    }

    /// Turns an entry into a module method for any kernel, with the companion packages of the driver.
    fn method(&self, row: &DriverRow, companions: &[PackageRow], pick: &Pick) -> ModuleMethod {
        let version = self.config.version.as_ref();
        let packages = row.packages.iter().chain(companions).filter_map(|package| {
            Some(PackageSpec {
                name: self
                    .placeholders
                    .driver_template(&package.name, pick.branch)?,
                version: match package.at {
                    At::Version => Some(pattern(version, pick.branch)),
                    At::Kernel => Some(for_its_kernel(&pattern(version, pick.branch))),
                    At::Branch => Some(pattern(None, pick.branch)),
                    At::Any => None,
                },
            })
        });
        let at_version = (row.packages.iter()).filter(|package| package.at == At::Version);
        let beside_it =
            at_version.filter_map(|one| self.placeholders.driver_template(&one.name, pick.branch));
        let follow = (row.follow.iter()).filter_map(|text| {
            Some(template(
                &self.placeholders.driver_template(text, pick.branch)?,
            ))
        });
        ModuleMethod {
            packages: packages.collect(),
            headers: match row.build.is_compiled() {
                true => self.placeholders.kernel_templates(&self.release.headers),
                false => Vec::new(),
            },
            follow: follow.collect(),
            compiled_as: row.compiled_as.clone(),
            module: row.module.clone(),
            prebuilt: None,
            branch: row.is_rolling().then_some(pick.branch),
            companions: match row.is_rolling() {
                true => beside_it.collect(),
                false => Vec::new(),
            },
        }
    }

    /// Returns the security fixes that the exact version lacks, unless the settings allow it.
    fn vulnerable(&self) -> Option<String> {
        let version = self.config.version.as_ref()?;
        let allowed = self.config.allow_vulnerable.unwrap_or(false);
        let lacking = security::of_driver(self.matrix, version).filter(|_| !allowed)?;
        Some(lacking.why)
    }

    /// Returns the key and the certificate that sign locally compiled modules. It is an error if only one of them is
    /// set.
    fn signing(&self) -> Result<Option<SigningKey>, ResolveError> {
        let config = &self.config.secure_boot;
        match (&config.key, &config.certificate) {
            (None, None) => Ok(None),
            (Some(key), Some(certificate)) => Ok(Some(SigningKey {
                key: key.clone().into_inner(),
                certificate: certificate.clone().into_inner(),
            })),
            (key, _) => {
                let (set, other) = match key {
                    Some(_) => ("driver.secure-boot.key", "driver.secure-boot.certificate"),
                    None => ("driver.secure-boot.certificate", "driver.secure-boot.key"),
                };
                let why = format!("`{other}` is also required");
                Err(self.layers.wrong(set, why, None).into())
            }
        }
    }

    /// Returns the sources of modules that another machine compiled.
    fn prebuilt(&self) -> Result<Option<Prebuilt>, ResolveError> {
        let config = &self.config.prebuilt;
        let sources: Vec<String> = (config.sources.iter().flatten())
            .map(ToString::to_string)
            .collect();
        let backend = self.profile.manager.backend();
        let requires_sources = "requires `driver.prebuilt.sources`".to_owned();
        let no_builder = format!("is not supported with {}", backend.name());
        let publishes =
            "`driver.prebuilt.publish` is also set, but this machine would never compile modules"
                .to_owned();
        for (is_wrong, why) in [
            (sources.is_empty(), requires_sources),
            (backend.builder().is_none(), no_builder),
            (config.publish.is_some(), publishes),
        ] {
            if config.only && is_wrong {
                return Err((self.layers)
                    .wrong("driver.prebuilt.only", why, None)
                    .into());
            }
        }
        if sources.is_empty() {
            return Ok(None);
        }
        let keys: Vec<String> = (config.public_keys.iter().flatten())
            .map(ToString::to_string)
            .collect();
        let unsigned = config.unsigned.unwrap_or(false);
        let wrong = |key: &str, why: &str| Err(self.layers.wrong(key, why.to_owned(), None).into());
        if keys.is_empty() && !unsigned {
            let why = "requires `driver.prebuilt.public-keys` to verify archives, or \
                       `driver.prebuilt.unsigned = true`";
            return wrong("driver.prebuilt.sources", why);
        }
        if unsigned && !keys.is_empty() {
            let why = "`driver.prebuilt.public-keys` is also set and would have no effect";
            return wrong("driver.prebuilt.unsigned", why);
        }
        if unsigned && config.not_before.is_some() {
            let why = "`driver.prebuilt.unsigned` is also set, but only signatures have a time";
            return wrong("driver.prebuilt.not-before", why);
        }
        if unsigned && sources.iter().any(|source| source.starts_with("http://")) {
            let why = "a URL of `driver.prebuilt.sources` starts with `http://`: an attacker in the network \
                       could replace the archive";
            return wrong("driver.prebuilt.unsigned", why);
        }
        Ok(Some(Prebuilt {
            sources,
            public_keys: keys,
            not_before: config.not_before.map(Moment::timestamp),
        }))
    }

    /// Returns the target for publishing modules that this machine compiled. A key must sign them, or the settings
    /// must allow unsigned modules. Otherwise other machines would reject them.
    fn publish(&self) -> Result<Option<Publish>, ResolveError> {
        let config = &self.config.prebuilt;
        let key = config.sign_key.clone().map(|key| key.into_inner());
        let wrong =
            |name: &str, why: &str| Err(self.layers.wrong(name, why.to_owned(), None).into());
        match (&config.publish, &key) {
            (None, None) => Ok(None),
            (None, Some(_)) => wrong(
                "driver.prebuilt.sign-key",
                "`driver.prebuilt.publish` is also required",
            ),
            (Some(_), None) if config.unsigned != Some(true) => wrong(
                "driver.prebuilt.publish",
                "requires `driver.prebuilt.sign-key`, the private signing key, or `driver.prebuilt.unsigned = true`",
            ),
            (Some(to), _) => Ok(Some(Publish {
                to: to.to_string(),
                key,
            })),
        }
    }

    /// Returns the module options that the boards or the instance type need.
    pub(super) fn options(
        &self,
        row: &DriverRow,
        branch: Branch,
        flavor: Flavor,
    ) -> Vec<ModuleOption> {
        let spec = self.spec();
        (self.matrix.module_options.iter())
            .filter(|one| one.is_for(&spec.gpus, spec.instance.as_ref(), branch, flavor))
            .map(|one| ModuleOption {
                // modprobe uses the file name of the module.
                module: match one.module.as_str() {
                    "nvidia" => row.module.clone(),
                    other => other.to_owned(),
                },
                name: one.option.clone(),
                value: one.value.clone(),
                why: one.why.clone(),
            })
            .collect()
    }

    fn source(&self) -> &str {
        match &self.config.source {
            Some(source) => source.as_str(),
            None => (self.source_for_switches()).unwrap_or(&self.release.driver_source),
        }
    }

    pub(super) fn served(&self, row: &DriverRow) -> bool {
        let is_for = |os: &Os| row.os_ids.is_empty() || row.os_ids.contains(&os.id);
        row.releases.contains(&self.release.version_id)
            && self.facts.os.as_ref().is_none_or(is_for)
            && (row.architectures.is_empty() || row.architectures.contains(&self.placeholders.arch))
    }

    /// Returns the entries of the source for this machine.
    fn rows(&self) -> Result<Vec<&'a DriverRow>, ResolveError> {
        let source = self.source();
        let all: Vec<&DriverRow> = self.profile.driver.iter().collect();
        if !all.iter().any(|row| row.source == source) {
            let mut known: Vec<&str> = all.iter().map(|row| row.source.as_str()).collect();
            known.dedup();
            let hint = nearest(source, known.iter().copied()).map_or_else(
                || "remove `driver.source`".to_owned(),
                |nearest| format!("did you mean `{nearest}`?"),
            );
            let why = format!(
                "profile `{}` provides drivers from {}",
                self.profile.name,
                known.join(" and ")
            );
            return Err(self.layers.wrong("driver.source", why, Some(hint)).into());
        }
        let rows: Vec<&DriverRow> = all
            .into_iter()
            .filter(|row| row.source == source && self.served(row))
            .collect();
        if rows.is_empty() {
            return Err(Refusal::new(
                "driver-not-offered",
                format!(
                    "source `{source}` has no driver packages for {} {} on {}",
                    self.profile.name, self.release.version_id, self.placeholders.arch
                ),
                self.other_sources(|_| true)
                    .unwrap_or_else(|| "no other source has any".into()),
            )
            .into());
        }
        Ok(rows)
    }

    /// Returns a hint to use another source, if it has an entry that satisfies the condition.
    fn other_sources(&self, condition: impl Fn(&DriverRow) -> bool) -> Option<String> {
        let source = self.source();
        let row = self
            .profile
            .driver
            .iter()
            .find(|row| row.source != source && self.served(row) && condition(row))?;
        Some(format!(
            "set `driver.source = \"{}\"`, which has {} ({} modules)",
            row.source,
            branches(&[row]),
            row.flavor
        ))
    }

    pub(super) fn spec(&self) -> Constraints {
        let kernel = &self.placeholders.kernels;
        let facts = self.with_switches(Constraints::from(self.facts));
        Constraints {
            gpus: self.gpus.clone(),
            kernel: kernel.first().cloned(),
            next_kernel: kernel.get(1).cloned(),
            // The instance that builds an image may differ from the instances that boot it.
            instance: facts.instance.filter(|_| !self.image),
            nvswitch: facts.nvswitch,
            nvlink_management: facts.nvlink_management,
            branch: (self.config.branch.map(|key| key.0))
                .or_else(|| self.config.version.as_ref().map(DriverVersion::branch)),
            version: self.config.version.clone(),
            flavor: self.config.flavor,
            cuda: self.config.cuda.clone().unwrap_or_default(),
            cudnn: None,
            candidates: None,
            arch: facts.arch,
        }
    }

    /// Checks the settings that do not depend on the GPUs, for a machine without a known GPU.
    ///
    /// # Errors
    /// If the selected source has no such driver, or the driver lacks security fixes.
    pub(super) fn check(&self) -> Result<(), ResolveError> {
        let wrong = &mut Vec::new();
        or_noted(self.released_cuda(), wrong);
        or_noted(self.signing(), wrong);
        or_noted(self.prebuilt(), wrong);
        or_noted(self.publish(), wrong);
        let config = self.config;
        if config.branch.is_some() || config.version.is_some() || config.source.is_some() {
            let offered = self.rows().and_then(|rows| self.offered(&rows));
            or_noted(offered, wrong);
        }
        if let Some(why) = self.vulnerable() {
            let hint =
                "set a fixed version as `driver.version`, or set `driver.allow-vulnerable = true`";
            let why = format!("`driver.version`: {why}");
            wrong.push(Refusal::new("vulnerable", why, hint).into());
        }
        match wrong.is_empty() {
            true => Ok(()),
            false => Err(ResolveError::all(std::mem::take(wrong))),
        }
    }

    /// Checks that the entries contain the configured branch and version.
    fn offered(&self, rows: &[&DriverRow]) -> Result<(), ResolveError> {
        let spec = self.spec();
        if let (Some(branch), Some(version)) = (self.config.branch, &self.config.version)
            && version.branch() != branch.0
        {
            let why = format!("does not match `driver.branch = {}`", branch.0);
            return Err(self.layers.wrong("driver.version", why, None).into());
        }
        if let Some(branch) = spec.branch
            && !rows.iter().any(|row| row.branches.contains(&branch))
        {
            return Err(self.not_offered(rows, branch).into());
        }
        match self.version_not_offered(rows) {
            Some(refusal) => Err(refusal.into()),
            None => Ok(()),
        }
    }

    fn pick(&self, rows: &[&DriverRow]) -> Result<Pick, ResolveError> {
        self.offered(rows)?;
        let spec = self.spec();
        let offered = |pick: &Pick| {
            rows.iter()
                .any(|row| row.branches.contains(&pick.branch) && row.flavor == pick.flavor)
        };
        // The best driver for the machine, if the source has it.
        if spec.branch.is_none() {
            let pick = (self.pick_for_kernels(&spec)).map_err(|none| self.refused(&spec, &none))?;
            if offered(&pick) {
                return Ok(pick);
            }
        }
        // Otherwise the best driver in the source: of any flavor, then of each flavor separately.
        let mut first_failure = None;
        for flavor in [spec.flavor, Some(Flavor::Open), Some(Flavor::Proprietary)] {
            if spec.flavor.is_some() && flavor != spec.flavor {
                continue;
            }
            let candidates = self.candidates(rows, flavor);
            let narrowed = Constraints {
                flavor,
                candidates: spec.version.is_none().then_some(candidates),
                ..spec.clone()
            };
            match self.pick_for_kernels(&narrowed) {
                Ok(pick) if offered(&pick) => return Ok(pick),
                Ok(_) => {}
                Err(no_driver) => first_failure = first_failure.or(Some(no_driver)),
            }
        }
        Err(first_failure
            .map_or_else(
                || {
                    let version = spec.version.as_ref();
                    let what = version.map_or("driver".into(), |v| format!("driver {v}"));
                    Refusal::new(
                        "driver-not-offered",
                        format!(
                            "`{}` has no {what} with a suitable module flavor",
                            self.source()
                        ),
                        "use another `driver.source`, or remove `driver.flavor`",
                    )
                },
                |no_driver| self.refused(&spec, &no_driver),
            )
            .into())
    }

    /// Returns the best driver for both the running kernel and the default boot kernel. If none supports both,
    /// returns the best one for the default boot kernel with a warning. `steps::kernels` then requires a reboot.
    fn pick_for_kernels(&self, spec: &Constraints) -> Result<Pick, Box<NoDriver>> {
        pick(self.matrix, spec).or_else(|none| {
            let (Some(running), Some(next), true) =
                (&spec.kernel, &spec.next_kernel, is_of_kernels(&none))
            else {
                return Err(none);
            };
            let mut found = match pick(self.matrix, &on_kernel(spec, next)) {
                Ok(found) => found,
                Err(_) => return Err(none),
            };
            found.warnings.push(format!(
                "no driver supports the running kernel {running} ({}). The selected one is for kernel {next}, which \
                 the next boot starts",
                reasons(&none)
            ));
            Ok(found)
        })
    }

    /// Rejects the machine because the matrix has no driver for it.
    fn refused(&self, spec: &Constraints, none: &NoDriver) -> Refusal {
        let is_vgpu = none.reasons.iter().any(|r| r.rule == Rule::Vgpu);
        let other_sources = self.other_sources(|row| {
            let narrowed = Constraints {
                flavor: Some(row.flavor),
                candidates: Some(self.candidates(&[row], None)),
                ..spec.clone()
            };
            spec.flavor.is_none_or(|one| one == row.flavor) && pick(self.matrix, &narrowed).is_ok()
        });
        // Another source keeps all other settings, unlike the nearest drivers in the matrix.
        let mut hints = match other_sources {
            Some(hint) => vec![hint],
            None => none.nearest.clone(),
        };
        if is_of_kernels(none) && !self.image {
            hints.push(self.other_kernel(spec));
        }
        Refusal {
            reason: if is_vgpu {
                "vgpu"
            } else {
                "driver-incompatible"
            },
            why: format!("no suitable driver: {}", reasons(none)),
            hint: (!hints.is_empty()).then(|| hints.join("; ")),
        }
    }

    /// Returns a hint to use another kernel. Only installed kernels are checked, because the package lists have not been read
    /// yet.
    fn other_kernel(&self, spec: &Constraints) -> String {
        let mut installed = self.facts.kernel.installed.clone();
        installed.sort();
        let fits = |kernel: &&KernelVersion| {
            !self.placeholders.kernels.contains(kernel)
                && pick(self.matrix, &on_kernel(spec, kernel)).is_ok()
        };
        match installed.iter().rev().find(fits) {
            Some(kernel) => {
                format!("boot kernel {kernel}, which is installed and has a suitable driver")
            }
            None => {
                let command = self.profile.kernel.as_ref().map(|row| {
                    let install = self.profile.manager.backend().commands().install;
                    format!(
                        " (`{}`)",
                        install.replace("NAME", &self.placeholders.fill(&row.newest))
                    )
                });
                format!(
                    "install and boot a distribution kernel{}",
                    command.unwrap_or_default()
                )
            }
        }
    }

    /// Returns the newest version of each branch in the source, from the profile or otherwise from the matrix.
    pub(super) fn candidates(
        &self,
        rows: &[&DriverRow],
        flavor: Option<Flavor>,
    ) -> Vec<DriverVersion> {
        rows.iter()
            .filter(|row| flavor.is_none_or(|flavor| row.flavor == flavor))
            .flat_map(|row| {
                row.branches.iter().filter_map(|branch| {
                    let known = self.matrix.branch(*branch);
                    (row.newest.clone()).or_else(|| known.map(|known| known.newest_version.clone()))
                })
            })
            .collect()
    }

    fn not_offered(&self, rows: &[&DriverRow], branch: Branch) -> Refusal {
        let set = (self.layers.place("driver.branch")).or(self.layers.place("driver.version"));
        let set = set.map_or_else(String::new, |place| format!(" (set by {place})"));
        let why = format!(
            "driver branch {branch}{set} is not in `{}` for {} {}, which has {}",
            self.source(),
            self.profile.name,
            self.release.version_id,
            branches(rows)
        );
        let hint = self
            .other_sources(|row| row.branches.contains(&branch))
            .unwrap_or_else(|| {
                let key = match self.config.branch {
                    Some(_) => "driver.branch",
                    None => "driver.version",
                };
                format!("remove `{key}` so that the matrix decides")
            });
        Refusal::new("driver-not-offered", why, hint)
    }

    /// Rejects an exact version that is missing in a source with one version per branch. On a machine, the package
    /// lists decide instead.
    fn version_not_offered(&self, rows: &[&DriverRow]) -> Option<Refusal> {
        let version = self.config.version.as_ref().filter(|_| self.trial)?;
        let of_branch = (rows.iter()).filter(|row| row.branches.contains(&version.branch()));
        let known: Option<Vec<&DriverVersion>> = of_branch.map(|row| row.newest.as_ref()).collect();
        let known = known.filter(|known| !known.contains(&version))?;
        let newest = known.into_iter().max()?;
        Some(Refusal::new(
            "driver-not-offered",
            format!(
                "driver {version} is not in `{}` for {} {}, which has {newest}",
                self.source(),
                self.profile.name,
                self.release.version_id
            ),
            "set `driver.branch` instead of `driver.version`",
        ))
    }

    /// Returns the entries with packages of the selected driver, in order of preference. Never empty.
    fn fitting(
        &self,
        rows: &[&'a DriverRow],
        pick: &Pick,
    ) -> Result<Vec<&'a DriverRow>, ResolveError> {
        let fits = |row: &&DriverRow| {
            row.branches.contains(&pick.branch)
                && row.flavor == pick.flavor
                && self.config.build.is_none_or(|build| row.build == build)
                && (row.kernel_flavors.is_empty()
                    || (self.placeholders.kernel_flavor.as_ref()).map_or(
                        self.trial && self.placeholders.kernels.is_empty(),
                        |flavor| row.kernel_flavors.contains(flavor),
                    ))
        };
        let fitting: Vec<&DriverRow> = rows.iter().copied().filter(fits).collect();
        if fitting.is_empty() {
            let kernel = self.placeholders.kernels.last();
            let build = self.config.build.map_or("any".into(), |b| b.to_string());
            return Err(Refusal::new(
                "driver-not-offered",
                format!(
                    "`{}` has no {} modules of branch {} for kernel {} with `driver.build` {build}",
                    self.source(),
                    pick.flavor,
                    pick.branch,
                    kernel.map_or("(unknown)", |kernel| kernel.as_str()),
                ),
                "remove `driver.build` and `driver.flavor`, or use another `driver.source`",
            )
            .into());
        }
        Ok(fitting)
    }
}

/// Returns a version pattern for the package manager: all versions of a branch, or all revisions of a version.
fn pattern(version: Option<&DriverVersion>, branch: Branch) -> String {
    version.map_or_else(|| format!("{branch}.*"), |version| format!("{version}-*"))
}

fn branches(rows: &[&DriverRow]) -> String {
    let mut all: Vec<Branch> = rows
        .iter()
        .flat_map(|row| row.branches.iter().copied())
        .collect();
    all.sort_unstable();
    all.dedup();
    let names: Vec<String> = all.iter().map(ToString::to_string).collect();
    format!("branch {}", names.join(", "))
}

fn reasons(none: &NoDriver) -> String {
    let texts: Vec<&str> = none.reasons.iter().map(|r| r.text.as_str()).collect();
    texts.join("; ")
}

/// Returns whether the kernel is the only reason to exclude every driver.
fn is_of_kernels(none: &NoDriver) -> bool {
    none.reasons
        .iter()
        .all(|rule_result| rule_result.rule == Rule::Kernel)
}

/// Returns the same request for a machine that only runs this kernel.
fn on_kernel(spec: &Constraints, kernel: &KernelVersion) -> Constraints {
    Constraints {
        kernel: Some(kernel.clone()),
        next_kernel: None,
        ..spec.clone()
    }
}

//! `driver.options`: driver module options that a board or an instance type needs. They take effect when the module
//! is loaded, so a module that was loaded without them requires a reboot. Options set by the administrator are not
//! changed.

use std::collections::BTreeMap;

use camino::Utf8Path;

use super::{DRIVER_OPTIONS, PREFLIGHT, messages};
use crate::{
    change::{Change, Lock},
    config::desired::{Desired, DriverSpec, ModuleOption},
    step::{Assessment, Cx, Step, StepError},
    tools::{
        kmod::{self, ModuleSetting},
        packages::HEADER,
    },
};

/// The file for modprobe.
pub const PATH: &str = "/etc/modprobe.d/gpu-bootstrap-options.conf";

/// Parameters of the loaded module, without the prefix `NVreg_`.
const PARAMETERS: &str = "/proc/driver/nvidia/params";
const PREFIX: &str = "NVreg_";

/// The `driver.options` step.
pub(super) fn step() -> Step {
    Step::new(DRIVER_OPTIONS, |cx| Box::pin(assess(cx)))
        .after([PREFLIGHT])
        .locks([Lock::Modules])
        .wants(|_, desired| {
            (desired.driver.as_ref()).is_none_or(|driver| !driver.options.is_empty())
        })
}

#[derive(Debug, Clone, Default)]
struct OptionsState {
    content: Option<String>,
    /// Settings in other files or in the kernel command line, in modprobe's order: source and setting.
    others: Vec<(String, ModuleSetting)>,
    /// The number of these settings that modprobe reads before [`PATH`], which therefore overrides them.
    before_ours: usize,
    /// Parameters of the loaded module. Empty if it is not loaded.
    loaded: BTreeMap<String, String>,
}

fn detect(cx: &Cx<'_>) -> Result<OptionsState, StepError> {
    let requested = (cx.desired.driver.as_ref()).is_some_and(|driver| !driver.options.is_empty());
    let files = cx.host.files();
    let content = files.read_text(Utf8Path::new(PATH))?;
    if !requested {
        return Ok(OptionsState {
            content,
            ..OptionsState::default()
        });
    }
    let (mut others, mut before_ours) = (Vec::new(), 0);
    for path in kmod::configuration(files, |_| true)? {
        if path == PATH {
            before_ours = others.len();
            continue;
        }
        let text = files.read_lossy(&path)?.unwrap_or_default();
        let settings = kmod::settings(&text);
        others.extend(settings.map(|one| (format!("`{path}`"), one)));
    }
    let line = files.read_text(Utf8Path::new("/proc/cmdline"))?;
    let line = line.unwrap_or_default();
    let of_boot = kmod::settings_of_boot(&line);
    others.extend(of_boot.map(|one| ("the kernel command line".to_owned(), one)));
    let parameters = files.read_text(Utf8Path::new(PARAMETERS))?;
    Ok(OptionsState {
        content,
        others,
        before_ours,
        loaded: parse_parameters(&parameters.unwrap_or_default()),
    })
}

/// Parses `EnableGpuFirmware: 0`, including quoted values.
fn parse_parameters(text: &str) -> BTreeMap<String, String> {
    (text.lines())
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| {
            let value = value.trim().trim_matches('"');
            (name.trim().to_owned(), value.to_owned())
        })
        .collect()
}

/// The position in `others` of the last setting of an option, which applies in modprobe.
fn position(state: &OptionsState, spec: &ModuleOption) -> Option<usize> {
    let module = kmod::canonical(&spec.module);
    (state.others.iter()).rposition(|(_, one)| {
        // A setting may also use the internal module name `nvidia`, whatever the name of the module file is.
        one.option == spec.name && (one.module == module || one.module == "nvidia")
    })
}

/// Returns the value of an option in another source, with this source.
fn other<'s>(state: &'s OptionsState, spec: &ModuleOption) -> Option<(&'s str, &'s str)> {
    let (place, one) = &state.others[position(state, spec)?];
    Some((place.as_str(), one.value.as_str()))
}

fn decide(state: &OptionsState, desired: &Desired) -> Assessment {
    let Some(driver) = &desired.driver else {
        return messages::no_driver();
    };
    if driver.options.is_empty() {
        return Assessment::not_applicable(
            "no board or instance type of this machine requires module options",
        );
    }
    let (theirs, ours): (Vec<&ModuleOption>, Vec<&ModuleOption>) =
        (driver.options.iter()).partition(|spec| other(state, spec).is_some());
    // Our file may be read after the administrator's.
    let overrides = state.content.is_some()
        && (theirs.iter()).any(|spec| position(state, spec) < Some(state.before_ours));
    let mut notes: Vec<String> = Vec::new();
    for spec in theirs {
        if let Some((place, value)) = other(state, spec) {
            let ours = if value == spec.value { "" } else { ", not " };
            let instead = if ours.is_empty() {
                ""
            } else {
                spec.value.as_str()
            };
            notes.push(format!("{place} sets {}={value}{ours}{instead}", spec.name));
        }
    }
    let notes = match notes.is_empty() {
        true => String::new(),
        false => format!("; not changed: {}", notes.join(", ")),
    };
    let mut changes = Vec::new();
    let mut whys = Vec::new();
    let wanted = content(&ours);
    if (!ours.is_empty() || overrides) && state.content.as_ref() != Some(&wanted) {
        let names: Vec<String> = (ours.iter())
            .map(|spec| format!("{}={}, which {}", spec.name, spec.value, spec.why))
            .collect();
        whys.push(match names.is_empty() {
            true => format!("`{PATH}` overrides options that another file sets"),
            false => format!("`{PATH}` does not set {}", names.join("; ")),
        });
        changes.push(Change::write(PATH, wanted));
    }
    let differ = not_loaded(state, driver);
    if !differ.is_empty() && !desired.image {
        let why = format!("the loaded module has {}", differ.join(", "));
        changes.push(Change::Reboot { why: why.clone() });
        whys.push(why);
    }
    if changes.is_empty() {
        let set: Vec<String> = (ours.iter())
            .map(|spec| format!("{}={}", spec.name, spec.value))
            .collect();
        let set = match set.is_empty() {
            true => "no option is required".to_owned(),
            false => format!("`{PATH}` sets {}", set.join(", ")),
        };
        return Assessment::satisfied(format!("{set}{notes}"));
    }
    Assessment::needs(format!("{}{notes}", whys.join("; ")), changes)
}

fn content(options: &[&ModuleOption]) -> String {
    let mut text = HEADER.to_owned();
    for spec in options {
        text.push_str(&format!(
            "# {}\noptions {} {}={}\n",
            spec.why, spec.module, spec.name, spec.value
        ));
    }
    text
}

/// Returns values of the loaded module that differ from the values of the next boot. A parameter that the module does not
/// list cannot be compared.
fn not_loaded(state: &OptionsState, driver: &DriverSpec) -> Vec<String> {
    let mut differ = Vec::new();
    for spec in &driver.options {
        let wanted = other(state, spec).map_or(spec.value.as_str(), |(_, value)| value);
        let name = spec.name.strip_prefix(PREFIX).unwrap_or(&spec.name);
        if let Some(found) = state.loaded.get(name)
            && found != wanted
        {
            differ.push(format!("{}={found}, not {wanted}", spec.name));
        }
    }
    differ
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    Ok(decide(&detect(cx)?, cx.desired))
}

#[cfg(test)]
mod tests {
    use super::{OptionsState, decide, parse_parameters};
    use crate::{
        change::Change,
        config::desired::{Desired, ModuleOption},
        step::Assessment,
        steps::fixtures::desired,
        tools::kmod::ModuleSetting,
    };

    fn wanted() -> Desired {
        let mut wanted = desired();
        let driver = wanted.driver.as_mut().expect("a driver");
        driver.options = vec![ModuleOption {
            module: "nvidia-current".into(),
            name: "NVreg_EnableGpuFirmware".into(),
            value: "0".into(),
            why: "disables the GSP".into(),
        }];
        wanted
    }

    /// The state of a module loaded with this value.
    fn loaded(value: &str) -> OptionsState {
        OptionsState {
            loaded: parse_parameters(&format!(
                "ResmanDebugLevel: 4294967295\nEnableGpuFirmware: {value}\nRegistryDwords: \"\"\n"
            )),
            ..OptionsState::default()
        }
    }

    fn written(state: OptionsState) -> OptionsState {
        let (_, changes) = decide(&OptionsState::default(), &wanted()).expect_needs();
        let [Change::WriteFile { content, .. }] = &changes[..] else {
            panic!("{changes:?}");
        };
        assert!(
            content.ends_with(
                "# disables the GSP\noptions nvidia-current NVreg_EnableGpuFirmware=0\n"
            ),
            "{content}"
        );
        OptionsState {
            content: Some(content.clone()),
            ..state
        }
    }

    #[test]
    fn written_and_loaded_options_satisfy() {
        for state in [
            written(OptionsState::default()),
            written(loaded("0")),
            // A driver that does not list the parameter.
            written(OptionsState {
                loaded: parse_parameters("DeviceFileMode: 438\n"),
                ..OptionsState::default()
            }),
        ] {
            let answer = decide(&state, &wanted());
            answer.expect_satisfied();
        }
        decide(&OptionsState::default(), &desired()).expect_not_applicable();
    }

    #[test]
    fn different_loaded_value_needs_a_reboot() {
        let (why, changes) = decide(&written(loaded("18")), &wanted()).expect_needs();
        assert_eq!(
            why,
            "the loaded module has NVreg_EnableGpuFirmware=18, not 0"
        );
        assert!(matches!(&changes[..], [Change::Reboot { .. }]));
        let (_, changes) = decide(&loaded("18"), &wanted()).expect_needs();
        assert!(matches!(
            &changes[..],
            [Change::WriteFile { .. }, Change::Reboot { .. }]
        ));
        let mut image = wanted();
        image.image = true;
        decide(&written(loaded("18")), &image).expect_satisfied();
    }

    #[test]
    fn unmanaged_option_is_kept_and_reported() {
        let theirs = |value: &str, now: &str| OptionsState {
            others: vec![(
                "`/etc/modprobe.d/site.conf`".into(),
                ModuleSetting {
                    module: "nvidia".into(),
                    option: "NVreg_EnableGpuFirmware".into(),
                    value: value.into(),
                },
            )],
            ..loaded(now)
        };
        let why = decide(&theirs("1", "1"), &wanted()).expect_satisfied();
        assert!(
            why.ends_with("`/etc/modprobe.d/site.conf` sets NVreg_EnableGpuFirmware=1, not 0"),
            "{why}"
        );
        // The setting may name the module like the module file, but an option of another module does not count.
        for (module, is_same) in [("nvidia_current", true), ("nvidia_drm", false)] {
            let mut state = theirs("1", "1");
            state.others[0].1.module = module.into();
            let answer = decide(&state, &wanted());
            assert_eq!(matches!(answer, Assessment::Satisfied { .. }), is_same);
        }
        // The next boot uses the other value, so the loaded module must match it.
        let (_, changes) = decide(&theirs("1", "0"), &wanted()).expect_needs();
        assert!(matches!(&changes[..], [Change::Reboot { .. }]));
        // A file of an earlier run does not override it if modprobe reads it first.
        let mut earlier = written(theirs("1", "1"));
        decide(&earlier, &wanted()).expect_satisfied();
        earlier.before_ours = 1;
        let (_, changes) = decide(&earlier, &wanted()).expect_needs();
        let [Change::WriteFile { content, .. }] = &changes[..] else {
            panic!("{changes:?}");
        };
        assert!(!content.contains("NVreg"), "{content}");
    }
}

//! The forms of `user-data`. Each has an entry in a `form.toml` in `cloud-init/` with its template, its values and their checks.
//! `cloud-init/README.md` describes the keys.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

use crate::model::text::{directory, table};

/// A form.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Form {
    pub name: String,
    /// The position in lists.
    order: u32,
    pub about: String,
    /// The name of the template, relative to `form.toml`.
    file: String,
    /// The path of the template, relative to `cloud-init/`.
    #[serde(skip)]
    pub path: String,
    #[serde(skip)]
    pub template: &'static str,
    /// The name of the settings file in the template.
    #[serde(default = "settings_file")]
    pub settings_file: String,
    /// The content type of the MIME part to remove from the template.
    pub without_part: Option<String>,
    /// The operating system for which the settings are checked by default. `None` if the template has no settings.
    pub os: Option<String>,
    #[serde(rename = "values")]
    value_names: Vec<String>,
    /// The values that are not settings, in the order of messages.
    #[serde(skip)]
    pub values: Vec<FormValue>,
    /// How pods get a GPU. `None` for a machine outside a Kubernetes cluster.
    pub gpu_pods: Option<GpuPods>,
    /// The name of the pod, if the template is a pod.
    pub pod: Option<String>,
    /// One of these providers must be given, unless the list is empty.
    #[serde(default, rename = "provider")]
    pub providers: Vec<Provider>,
}

fn settings_file() -> String {
    "50-user-data.toml".to_owned()
}

/// How pods get a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuPods {
    /// The runtime `nvidia` is the default.
    DefaultRuntime,
    /// Pods have a runtime class, which users create.
    RuntimeClass,
    /// Pods have a runtime class, which the cluster creates.
    OwnRuntimeClass,
}

/// A provider of the nodes. The template has comments for each.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Provider {
    pub name: String,
    pub about: String,
    /// Additional options of the command that installs the device plugin.
    pub device_plugin_options: Option<String>,
}

/// A value that is not a setting.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct FormValue {
    #[serde(skip)]
    pub name: String,
    pub placeholder: String,
    example: Option<String>,
    pub about: String,
    pub kind: ValueKind,
    /// The remedy for an invalid value.
    pub hint: Option<String>,
    /// Mistakes with their own messages.
    #[serde(default)]
    pub reject: Vec<Rejection>,
    /// The setting with the same meaning, which is also accepted.
    pub setting: Option<String>,
    /// The command that prints this value of a cluster.
    pub printed_by: Option<String>,
    /// The template has no placeholder for this optional value.
    pub insert: Option<Insertion>,
    /// The optional value that inserts the placeholder of this value.
    pub only_with: Option<String>,
    /// The cloud of an instance family.
    pub cloud: Option<String>,
}

impl FormValue {
    /// Returns an example for messages.
    pub fn example(&self) -> &str {
        let in_template = self.placeholder.trim_matches('@');
        self.example.as_deref().unwrap_or(in_template)
    }
}

/// The lines that an optional value adds to the template.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Insertion {
    /// The line before it.
    pub after: String,
    /// The lines, with the placeholder.
    pub line: String,
}

/// A mistake with its own message.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Rejection {
    /// Shell patterns for the whole value, one of which must match.
    pub patterns: Vec<String>,
    pub why: String,
    /// The remedy. `@LAST@` is the part of the value after the last `/` or `:`.
    pub hint: String,
}

/// The format of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ValueKind {
    Text,
    /// A name instead of a path or an ARN.
    Name,
    HttpsUrl,
    Sha256,
    /// A PEM certificate in base64.
    Certificate,
    /// A CIDR block.
    Network,
    Ip,
    /// A host name or an IP address, without a port.
    Host,
    /// The start of an image name.
    ImageName,
    /// The name of a Kubernetes object.
    ObjectName,
    /// `x86_64` or `arm64`.
    Architecture,
    /// The part of an instance type before the dot.
    InstanceFamily,
    /// A version with as many numbers as the example.
    Version,
    /// A version of k3s or RKE2, such as `v1.35.2+k3s1`.
    AgentVersion,
}

/// A `form.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FormFile {
    form: Vec<Form>,
    /// The values that only these forms have.
    #[serde(default)]
    value: BTreeMap<String, FormValue>,
}

static FORMS: LazyLock<Vec<Form>> = LazyLock::new(|| {
    read().unwrap_or_else(|error| panic!("cloud-init (tests print each form): {error}"))
});

fn read() -> Result<Vec<Form>, String> {
    let shared = parsed("values", table("cloud-init/values")?)?;
    let mut forms = Vec::new();
    for (name, text) in directory("cloud-init")? {
        if let Some(directory) = name.strip_suffix("/form") {
            let file: FormFile = parsed(name, text)?;
            forms.extend(complete(directory, file, &shared)?);
        }
    }
    forms.sort_by_key(|form| form.order);
    Ok(forms)
}

fn parsed<T: serde::de::DeserializeOwned>(name: &str, text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| format!("{name}.toml: {error}"))
}

/// Adds the templates and the values to the forms of a file.
fn complete(
    directory: &str,
    file: FormFile,
    shared: &BTreeMap<String, FormValue>,
) -> Result<Vec<Form>, String> {
    let FormFile { mut form, value } = file;
    for form in &mut form {
        form.path = format!("{directory}/{}", form.file);
        form.template = table(&format!("cloud-init/{}", form.path))?;
        for name in &form.value_names {
            let found = value.get(name).or_else(|| shared.get(name));
            let found = found.ok_or_else(|| format!("{}: no value `{name}`", form.name))?;
            form.values.push(FormValue {
                name: name.clone(),
                ..found.clone()
            });
        }
    }
    Ok(form)
}

/// Returns all forms.
pub fn all() -> &'static [Form] {
    &FORMS
}

/// Returns the form with this name.
pub fn named(name: &str) -> Option<&'static Form> {
    all().iter().find(|form| form.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_and_positions_are_unique() {
        let names: BTreeSet<&str> = all().iter().map(|form| &*form.name).collect();
        let orders: BTreeSet<u32> = all().iter().map(|form| form.order).collect();
        assert_eq!((names.len(), orders.len()), (all().len(), all().len()));
    }

    #[test]
    fn values_are_used_by_several_forms_if_shared() {
        let shared: BTreeMap<String, FormValue> =
            parsed("values", table("cloud-init/values").unwrap()).unwrap();
        for name in shared.keys() {
            let forms = all().iter();
            let forms = forms.filter(|form| form.value_names.contains(name));
            assert!(forms.count() > 1, "{name}");
        }
        for (file, text) in directory("cloud-init").unwrap() {
            let Some(directory) = file.strip_suffix("/form") else {
                continue;
            };
            let FormFile { form, value } = parsed(file, text).unwrap();
            for name in value.keys() {
                let is_used = form.iter().any(|form| form.value_names.contains(name));
                assert!(is_used, "{directory}: {name}");
            }
        }
    }

    /// A key that does not apply to the kind would have no effect.
    #[test]
    fn instance_families_have_a_cloud() {
        for form in all() {
            for value in &form.values {
                let is_family = value.kind == ValueKind::InstanceFamily;
                assert_eq!(value.cloud.is_some(), is_family, "{}", value.name);
            }
        }
    }
}

//! `containerd-runtime`: puts the runtime back that `install` has set, before containerd starts. A drop-in of containerd's
//! unit runs it on nodes whose provider writes containerd's file anew (`steps/runtime_config.rs`), so that no pod with a GPU
//! comes to a containerd without it. What failed is told to the log of the unit, and containerd starts all the same.

use camino::Utf8Path;

use super::{Failure, prepare, world::World};
use crate::{
    change::{Change, RuntimeSettings},
    config::desired::Daemon,
    engine,
    error::one_line,
    exit::Exit,
    host::Host,
    model::document::{Document, Format},
    state::CONTAINERD_CONFIG,
    tools::{
        containerd::{
            self,
            layout::{ConfigFile, ContainerdRuntime, Version, settings},
        },
        toolkit,
    },
};

pub(super) async fn run(world: &mut World<'_>) -> Result<Exit, Failure> {
    prepare::root(world, "put the runtime back")?;
    let Some(wanted) = wanted(&world.host)? else {
        return Ok(Exit::Ok);
    };
    put_back(&world.host, &wanted).await.map_err(|why| {
        Failure::new(
            Exit::StepFailed,
            "runtime-not-put-back",
            &format!("failed to put the nvidia runtime into `{CONTAINERD_CONFIG}`: {why}"),
            Some("run `gpu-bootstrap install` on this node"),
        )
    })?;
    Ok(Exit::Ok)
}

/// Returns the settings of the last change of containerd that is applied. An `install` that restarts containerd is not done
/// with its change; if that fails, the former configuration must stay.
fn wanted(host: &Host) -> Result<Option<RuntimeSettings>, Failure> {
    let applied = engine::applied(host)?;
    Ok(applied.into_iter().find_map(|change| match change {
        Change::ConfigureRuntime { settings } if settings.kind == Daemon::Containerd => {
            Some(settings)
        }
        _ => None,
    }))
}

/// Sets what the change of `install` set, in the form that the file has now.
async fn put_back(host: &Host, wanted: &RuntimeSettings) -> Result<(), String> {
    let path = Utf8Path::new(CONTAINERD_CONFIG);
    let text = host
        .files
        .read_text(path)
        .map_err(|error| one_line(&error))?;
    let version = match host.reader().query(&containerd::version()).await {
        Ok(output) if output.ok() => Version::parse(&output.stdout),
        _ => None,
    };
    let file = ConfigFile {
        path: path.to_owned(),
        text: text.clone(),
    };
    let runtime = ContainerdRuntime {
        name: &wanted.runtime,
        program: toolkit::RUNTIME,
        kept: false,
        default: wanted.default,
        cdi: true,
        systemd_cgroup: None,
        for_kubelet: false,
    };
    let mut document = Document::parse(Format::Toml, text.as_deref().unwrap_or_default())
        .map_err(|error| error.to_string())?;
    let lacking = settings(&[file], version, &runtime)?;
    let keys: Vec<_> = lacking.iter().flat_map(|file| &file.settings).collect();
    if keys.is_empty() {
        return Ok(());
    }
    for setting in keys {
        document.set(setting).map_err(|error| error.to_string())?;
    }
    let mode = host.files.stat(path).map_err(|error| one_line(&error))?;
    let mode = mode.map_or(0o644, |stat| stat.mode & 0o777);
    (host.files.write(path, document.text().as_bytes(), mode)).map_err(|error| one_line(&error))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{host::fake, journal};

    /// A journal of a run that sets containerd's runtime several times.
    fn journal_of(records: &[Value]) -> String {
        let lines = records.iter().enumerate().map(|(seq, record)| {
            let line = json!({
                "schema": journal::SCHEMA, "seq": seq, "at": "2026-01-01T00:00:00Z", "run": "r", "record": record,
            });
            format!("{line}\n")
        });
        lines.collect()
    }

    #[test]
    fn the_newest_applied_setting_counts() {
        let undo = json!({"undo": "impossible", "what": "x", "why": "x"});
        let intent = |default: bool| {
            json!({
                "kind": "intent", "steps": ["runtime.containerd-nvidia"], "undo": undo,
                "change": {
                    "kind": "configure-runtime",
                    "settings": {
                        "kind": "containerd", "unit": "containerd.service", "files": [], "runtime": "nvidia",
                        "default": default, "cdi": false,
                    },
                },
            })
        };
        let ended = |kind: &str, intent: u64| json!({"kind": kind, "intent": intent, "undo": undo});
        let (host, fakes) = fake::host();
        let default = |records: &[Value]| {
            fakes
                .files
                .put(journal::path().as_str(), journal_of(records));
            wanted(&host)
                .expect("a journal")
                .map(|settings| settings.default)
        };
        let mut records = vec![intent(false)];
        assert_eq!(default(&records), None);
        records.extend([ended("applied", 0), intent(true)]);
        // The second change is being applied, or was interrupted.
        assert_eq!(default(&records), Some(false));
        records.push(ended("applied", 2));
        assert_eq!(default(&records), Some(true));
        records.extend([intent(false), ended("interrupted", 4)]);
        assert_eq!(default(&records), Some(true));
    }

    /// Google's script writes the file anew at each boot, and restarts containerd.
    #[tokio::test]
    async fn a_file_that_was_written_anew_gets_the_runtime_back_once() {
        let (host, fakes) = fake::host();
        fakes.exec.on("containerd", |_, _| {
            fake::ok("containerd containerd.io v2.1.5 abc\n")
        });
        let googles = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/home/kubernetes/bin\"\n\
                       [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n\
                       runtime_type = \"io.containerd.runc.v2\"\n\
                       [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\nSystemdCgroup = true\n";
        fakes.files.put(CONTAINERD_CONFIG, googles);
        let wanted = RuntimeSettings {
            kind: Daemon::Containerd,
            unit: "containerd.service".to_owned(),
            files: Vec::new(),
            runtime: "nvidia".to_owned(),
            default: false,
            cdi: false,
            may_stop: false,
        };
        put_back(&host, &wanted).await.expect("put back");
        let text = fakes.files.text(CONTAINERD_CONFIG);
        let read = containerd::parse_config(&text).expect("TOML");
        assert_eq!(read.programs["nvidia"], toolkit::RUNTIME, "{text}");
        assert!(read.systemd_cgroup["nvidia"], "{text}");
        assert!(text.contains("/home/kubernetes/bin"), "{text}");
        let before = fakes.files.mutations();
        put_back(&host, &wanted).await.expect("put back");
        assert_eq!(fakes.files.mutations(), before);
        fakes.files.put(CONTAINERD_CONFIG, "version = ");
        assert!(put_back(&host, &wanted).await.is_err());
    }
}

//! Containerd checks: the kubelet, containerd's default runtime and its nvidia runtimes must use the same cgroup driver.

use crate::{
    check::{Family, Finding, Subject, Verdict},
    model::id::Id,
    runtimes::{
        BUILT_IN, Config, ConfigFile, LiveConfig, RuntimeKind, containerd::CONFIG, set_in_runtime,
    },
    step::StepError,
    tools::kubelet,
};

const CGROUP: Id = Id::new("rt.containerd.systemd-cgroup");

const LINK: &str = "https://kubernetes.io/docs/setup/production-environment/container-runtimes/";

/// The containerd checks.
pub(super) const FAMILY: Family = Family {
    ids: || vec![CGROUP],
    examine: |subject| Box::pin(examine(subject)),
};

#[derive(Debug, Clone)]
struct CgroupState {
    /// The configuration of the CRI plugin. `None` if containerd is not installed.
    cri: Option<Config>,
    /// The cgroup driver in the kubelet's configuration, `systemd` or `cgroupfs`. `None` if none is configured.
    kubelet: Option<String>,
    /// Name and socket of the kubelet's runtime if it is not this containerd, such as the containerd of k3s.
    other: Option<String>,
    /// The files of containerd, in the order in which it reads them.
    files: Vec<ConfigFile>,
}

async fn detect(subject: &Subject<'_>) -> Result<CgroupState, StepError> {
    let files = subject.host.files();
    // If the kubelet's runtime is unknown, its name is the socket path. The socket may belong to this containerd.
    let other = (subject.state.kubelet_runtime()?)
        .filter(|found| found.name != RuntimeKind::Containerd.name() && found.name != found.socket);
    let path = subject.state.kubelet_config()?;
    let kubelet = match files.read_text(path.as_str().into())? {
        None => None,
        Some(text) => {
            let config = kubelet::parse(&text).map_err(|why| StepError::Unexpected {
                what: format!("`{path}`"),
                why,
            })?;
            config.cgroup_driver
        }
    };
    Ok(CgroupState {
        cri: config(subject).await?,
        kubelet,
        other: other.map(|found| format!("{} at `{}`", found.name, found.socket)),
        files: (subject.state.runtime(RuntimeKind::Containerd).await?.files).clone(),
    })
}

/// Returns the effective containerd configuration, or the configuration in the files if containerd cannot be queried, as with
/// `--root`.
async fn config(subject: &Subject<'_>) -> Result<Option<Config>, StepError> {
    let view = subject.state.runtime(RuntimeKind::Containerd).await?;
    let unexpected = |what: &str, why: &str| StepError::Unexpected {
        what: what.to_owned(),
        why: why.to_owned(),
    };
    match (&view.said, &view.broken) {
        (LiveConfig::Silent(why), _) => Err(unexpected("the containerd configuration", why)),
        (LiveConfig::Unknown(_), Some(broken)) => {
            Err(unexpected(broken.path.as_str(), &broken.why))
        }
        _ => Ok(view.config().cloned()),
    }
}

fn decide(state: &CgroupState) -> Finding {
    let finding = |status, why: String| Finding::new(CGROUP, status, why);
    if let (Some(_), Some(other)) = (&state.cri, &state.other) {
        return finding(
            Verdict::Skip,
            format!("the kubelet uses {other} instead of this containerd"),
        );
    }
    let cri = match &state.cri {
        None => return finding(Verdict::Skip, "containerd is not installed".to_owned()),
        Some(cri) if !cri.serves_pods => {
            return finding(
                Verdict::Skip,
                "containerd does not serve a kubelet, because its CRI plugin is disabled"
                    .to_owned(),
            );
        }
        Some(cri) => cri,
    };
    let of = |runtime: &str| cri.systemd_cgroup.get(runtime).copied().unwrap_or(false);
    let default = cri.default.as_deref().unwrap_or(BUILT_IN);
    let systemd = of(default);
    let said = |systemd: bool| if systemd { "systemd" } else { "cgroupfs" };
    let with = |status, why: String, expected: &str, remedy: String| Finding {
        observed: Some(said(systemd).to_owned()),
        expected: Some(expected.to_owned()),
        remedy: Some(remedy),
        links: vec![LINK.to_owned()],
        ..finding(status, why)
    };
    let set = |runtime: &str, value: bool| {
        let value = value.to_string();
        let command = (state.files.iter().rev()).find_map(|file| {
            let command = set_in_runtime(file, runtime, ".options", "SystemdCgroup", &value)?;
            Some((command, &file.path))
        });
        match command {
            Some((command, path)) => format!(
                "run `{command} && systemctl restart containerd`: it sets `SystemdCgroup = {value}` in the options of runtime \
                 `{runtime}` in `{path}`; if the file is generated at boot, also change its template"
            ),
            None => format!(
                "set `SystemdCgroup = {value}` in the options of runtime `{runtime}` in `{CONFIG}` (if this file is \
                 generated at boot, also in its template), then run `systemctl restart containerd`"
            ),
        }
    };
    // The kubelet has one cgroup driver, so if two runtimes differ, the pods of one of them do not stay up.
    let other =
        (cri.runtimes.iter()).find(|name| name.starts_with("nvidia") && of(name) != systemd);
    if let Some(other) = other {
        return with(
            Verdict::Fail,
            format!(
                "pods do not stay up, because the containerd runtime `{default}` uses the cgroup driver {}, but `{other}` \
                 uses {}",
                said(systemd),
                said(of(other))
            ),
            "the same cgroup driver for all runtimes",
            set(other, systemd),
        );
    }
    match state.kubelet.as_deref() {
        Some(kubelet) if kubelet != said(systemd) => with(
            Verdict::Fail,
            format!(
                "pods do not stay up, because the kubelet uses the cgroup driver {kubelet}, but containerd uses {}",
                said(systemd)
            ),
            kubelet,
            set(default, kubelet == "systemd"),
        ),
        Some(kubelet) => finding(Verdict::Pass, format!("{kubelet}, like the kubelet")),
        None => finding(
            Verdict::Pass,
            format!("{}; no kubelet is configured", said(systemd)),
        ),
    }
}

async fn examine(subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
    Ok(vec![decide(&detect(subject).await?)])
}

#[cfg(test)]
mod tests {
    use super::{CgroupState, decide};
    use crate::{
        check::Verdict,
        runtimes::{Config, ConfigFile},
    };

    fn state(runc: Option<bool>, nvidia: Option<bool>, kubelet: Option<&str>) -> CgroupState {
        let options = [("runc", runc), ("nvidia", nvidia)];
        CgroupState {
            cri: Some(Config {
                runtimes: ["runc", "nvidia"].map(str::to_owned).into(),
                systemd_cgroup: (options.into_iter())
                    .filter_map(|(name, systemd)| Some((name.to_owned(), systemd?)))
                    .collect(),
                serves_pods: true,
                ..Config::default()
            }),
            kubelet: kubelet.map(str::to_owned),
            other: None,
            files: Vec::new(),
        }
    }

    #[test]
    fn different_cgroup_drivers_fail() {
        let (yes, no) = (Some(true), Some(false));
        for (state, verdict, words) in rows! {
            state(yes, yes, Some("systemd")), Verdict::Pass, "like the kubelet";
            state(no, no, Some("cgroupfs")), Verdict::Pass, "like the kubelet";
            state(no, no, Some("systemd")), Verdict::Fail,
                "the kubelet uses the cgroup driver systemd, but containerd uses cgroupfs";
            state(yes, no, None), Verdict::Fail,
                "runtime `runc` uses the cgroup driver systemd, but `nvidia` uses cgroupfs";
            state(yes, yes, None), Verdict::Pass, "systemd";
            state(None, None, None), Verdict::Pass, "no kubelet";
        } {
            let finding = decide(&state);
            assert_eq!(finding.status, verdict, "{}", finding.why);
            assert!(finding.why.contains(words), "{}", finding.why);
            assert_eq!(finding.remedy.is_some(), verdict != Verdict::Pass);
        }
    }

    #[test]
    fn command_sets_the_cgroup_driver() {
        let options =
            "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia.options]\n";
        for (lines, script) in [
            (
                "BinaryName = 'x'\n",
                "/runtimes\\.\"\\?nvidia\"\\?\\.options\\]/a SystemdCgroup = true",
            ),
            (
                "\tSystemdCgroup = false\n",
                "/runtimes\\.\"\\?nvidia\"\\?\\.options\\]/,/^[[:space:]]*\\[/s|^\\([[:space:]]*SystemdCgroup *=\\).*|\\1 true|",
            ),
            ("[a]\nSystemdCgroup = false\n", "/a SystemdCgroup = true"),
        ] {
            let mut state = state(Some(true), None, None);
            state.files = vec![ConfigFile {
                path: "/etc/containerd/config.toml".into(),
                text: Some(format!("{options}{lines}")),
            }];
            let remedy = decide(&state).remedy.unwrap_or_default();
            assert!(remedy.starts_with("run `sed -i '"), "{remedy}");
            let end =
                format!("{script}' /etc/containerd/config.toml && systemctl restart containerd`");
            assert!(remedy.contains(&end), "{remedy}");
        }
    }

    #[test]
    fn containerd_without_cri_is_skipped() {
        let mut none = state(None, None, None);
        none.cri = Some(Config::default());
        assert_eq!(decide(&none).status, Verdict::Skip);
        none.cri = None;
        assert_eq!(decide(&none).status, Verdict::Skip);
    }

    #[test]
    fn unused_containerd_is_skipped() {
        let mut unused = state(Some(false), Some(false), Some("systemd"));
        unused.other = Some("k3s at `/run/k3s/containerd/containerd.sock`".to_owned());
        let finding = decide(&unused);
        assert_eq!(finding.status, Verdict::Skip);
        assert!(
            finding.why.contains("the kubelet uses k3s"),
            "{}",
            finding.why
        );
    }
}

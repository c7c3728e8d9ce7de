//! Checks the ports of RDMA adapters (InfiniBand, RoCE and EFA) for links that went down and links that are not active.
//!
//! Error counters are not checked, because published limits are rates and cannot be evaluated with a single reading. The number
//! of active ports and their speed are not checked either, because the machine has no expected values.

use camino::Utf8Path;

use crate::{
    check::{Family, Finding, Subject, Verdict},
    host::ReadFiles,
    model::id::Id,
    step::StepError,
};

const PORTS: Id = Id::new("rdma.ports");

/// The directory of adapters, with `ports/NUMBER` in each (Linux, `Documentation/ABI/stable/sysfs-class-infiniband`).
const ADAPTERS: &str = "/sys/class/infiniband";

pub(super) const FAMILY: Family = Family {
    ids: || vec![PORTS],
    examine: |subject| Box::pin(examine(subject)),
};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Port {
    /// The name as shown by `rdma link`, such as `mlx5_0/1`.
    name: String,
    /// `ACTIVE`, `INIT`, `DOWN`, ….
    state: String,
    /// The physical link is up.
    has_link: bool,
    /// `InfiniBand`, `Ethernet`, ….
    layer: String,
    /// How often the link went down since the counters were reset; 0 if there is no counter.
    lost: u64,
}

/// Returns the name in text such as `4: ACTIVE`.
fn word(text: &str) -> &str {
    text.rsplit(':').next().unwrap_or_default().trim()
}

fn detect(files: &dyn ReadFiles) -> Result<Vec<Port>, StepError> {
    let mut found = Vec::new();
    for adapter in files.list(Utf8Path::new(ADAPTERS))? {
        let ports = Utf8Path::new(ADAPTERS).join(&adapter).join("ports");
        for number in files.list(&ports)? {
            let directory = ports.join(&number);
            let text = |name: &str| files.read_text(&directory.join(name));
            let Some(state) = text("state")? else {
                return Err(StepError::Unexpected {
                    what: format!("`{directory}`"),
                    why: "it has no `state`".to_owned(),
                });
            };
            let lost = text("counters/link_downed")?;
            found.push(Port {
                name: format!("{adapter}/{number}"),
                state: word(&state).to_owned(),
                has_link: text("phys_state")?.is_some_and(|text| word(&text) == "LinkUp"),
                layer: (text("link_layer")?.unwrap_or_default().trim()).to_owned(),
                // The counter of a virtual function is `N/A (no PMA)`.
                lost: lost
                    .and_then(|count| count.trim().parse().ok())
                    .unwrap_or_default(),
            });
        }
    }
    Ok(found)
}

/// `1 port`, `8 ports`.
fn of(count: usize) -> String {
    match count {
        1 => "1 port".to_owned(),
        count => format!("{count} ports"),
    }
}

fn decide(ports: &[Port]) -> Finding {
    let finding = |status, why: String| Finding::new(PORTS, status, why);
    let warn = |sick: &[&Port], what: &str, remedy: &str| {
        let names: Vec<&str> = sick.iter().map(|port| port.name.as_str()).collect();
        Finding {
            observed: sick.first().map(|port| port.state.clone()),
            expected: Some("ACTIVE".to_owned()),
            remedy: Some(remedy.to_owned()),
            ..finding(
                Verdict::Warn,
                format!(
                    "{what}: {} ({} of {})",
                    names.join(", "),
                    sick.len(),
                    of(ports.len())
                ),
            )
        }
    };
    if ports.is_empty() {
        return finding(Verdict::Skip, "no RDMA adapter".to_owned());
    }
    let with = |is: fn(&Port) -> bool| ports.iter().filter(|port| is(port)).collect::<Vec<_>>();
    // A port that never had a link may be unused.
    let gone = with(|port| !port.has_link && port.state == "DOWN" && port.lost > 0);
    if !gone.is_empty() {
        return warn(
            &gone,
            "the link went down",
            "check the cable, its transceivers and the switch port",
        );
    }
    let idle = with(|port| {
        port.has_link
            && port.layer == "InfiniBand"
            && matches!(port.state.as_str(), "INIT" | "ARMED")
    });
    if !idle.is_empty() {
        return warn(
            &idle,
            "no subnet manager has activated the link",
            "check with `sminfo` whether the subnet manager of the InfiniBand network is running and has discovered the port",
        );
    }
    match with(|port| port.state == "ACTIVE").len() {
        0 => finding(Verdict::Skip, "no port is active".to_owned()),
        active => finding(
            Verdict::Pass,
            format!("{active} of {} active", of(ports.len())),
        ),
    }
}

async fn examine(subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
    Ok(vec![decide(&detect(subject.host.files())?)])
}

#[cfg(test)]
mod tests {
    use super::{decide, detect};
    use crate::{check::Verdict, host::fake::FakeFiles};

    /// Creates the sysfs files of a port.
    fn put(
        files: &FakeFiles,
        adapter: &str,
        state: &str,
        phys_state: &str,
        layer: &str,
        lost: &str,
    ) {
        let directory = format!("/sys/class/infiniband/{adapter}/ports/1");
        for (name, text) in [
            ("state", state),
            ("phys_state", phys_state),
            ("link_layer", layer),
            ("counters/link_downed", lost),
        ] {
            files.put(&format!("{directory}/{name}"), format!("{text}\n"));
        }
    }

    #[test]
    fn lost_or_inactive_link_warns() {
        use Verdict::{Pass, Skip, Warn};
        const UP: [&str; 4] = ["4: ACTIVE", "5: LinkUp", "InfiniBand", "3"];
        const FREE: [&str; 4] = ["1: DOWN", "2: Polling", "InfiniBand", "0"];
        for (other, status, why) in rows! {
            UP, Pass, "2 of 2 ports active";
            FREE, Pass, "1 of 2 ports active";
            ["1: DOWN", "2: Polling", "InfiniBand", "1"], Warn,
                "the link went down: mlx5_1/1 (1 of 2 ports)";
            ["2: INIT", "5: LinkUp", "InfiniBand", "0"], Warn,
                "no subnet manager has activated the link: mlx5_1/1 (1 of 2 ports)";
            // RoCE has no subnet manager, and a virtual function has no counters.
            ["2: INIT", "5: LinkUp", "Ethernet", "N/A (no PMA)"], Pass, "1 of 2 ports active";
        } {
            let files = FakeFiles::new();
            let [state, phys_state, layer, lost] = UP;
            put(&files, "mlx5_0", state, phys_state, layer, lost);
            let [state, phys_state, layer, lost] = other;
            put(&files, "mlx5_1", state, phys_state, layer, lost);
            let finding = decide(&detect(&files).unwrap());
            assert_eq!((finding.status, finding.why.as_str()), (status, why));
        }
        let files = FakeFiles::new();
        assert_eq!(decide(&detect(&files).unwrap()).status, Skip);
        let [state, phys_state, layer, lost] = FREE;
        put(&files, "mlx5_0", state, phys_state, layer, lost);
        let finding = decide(&detect(&files).unwrap());
        assert_eq!(
            (finding.status, finding.why.as_str()),
            (Skip, "no port is active")
        );
        files.put("/sys/class/infiniband/mlx5_1/ports/1/rate", "");
        assert!(detect(&files).is_err());
    }
}

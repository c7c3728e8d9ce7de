//! Simulates a cloud instance: the firmware identifies the cloud, and the cloud's metadata service responds in the
//! machine's network. cloud-init gets its user data from the cloud's data source.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::bed::Bed;
use crate::cases::fill;
use crate::machine::Machine;
use crate::metadata::{Cloud, Service};
use crate::out;
use crate::serve::READY;
use crate::simulation::{INSIDE, program, write};

/// The first process of such a machine, instead of systemd.
pub const FIRST: &str = "/usr/lib/testbed/first";

const FIRST_PROGRAM: &str = include_str!("../files/cloud-init-first.sh");
const DETECT_VIRT: &str = include_str!("../files/systemd-detect-virt.sh");

/// Unused keys and locales take time. A container has neither a disk whose filesystem could grow nor udev, which
/// reports hot-plugged cards.
const SETTINGS: &str = "ssh_genkeytypes: [ed25519]\nlocale: false\nresize_rootfs: false\n\
                        updates: {network: {when: [boot-new-instance]}}\n";

/// cloud-init's own configuration matches the permanent address of a card, which this card does not have.
const NETWORK: &str = "[Match]\nName=tap0\n[Network]\nDHCP=ipv4\n";

/// The longest time until the service listens.
const START: Duration = Duration::from_secs(10);

/// A file of the directory `clouds`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// Addresses that the service listens on.
    addresses: Vec<String>,
    /// Host names that the cloud's resolver knows.
    #[serde(default)]
    names: Vec<String>,
    /// The DMI files.
    dmi: BTreeMap<String, String>,
    answers: serde_json::Value,
}

/// Turns a machine that is not up yet into an instance of the cloud, with this user data.
pub fn join(bed: &Bed, machine: &Machine, cloud: Cloud, user_data: &str) -> Result<()> {
    let path = bed.here("clouds").join(format!("{}.toml", cloud.name()));
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    // An instance type with a GPU would set an expected GPU count on a machine without one.
    let machine_type = match (cloud, machine.spec().pci.is_empty()) {
        (Cloud::Aws, true) => "m7i.large",
        (Cloud::Aws, false) => "p5.4xlarge",
        (_, true) => "e2-standard-4",
        (_, false) => "g2-standard-4",
    };
    let values = [
        ("mac", machine.mac()?),
        ("machine-type", machine_type.to_owned()),
    ];
    let text = fill(&text, &BTreeMap::from(values))?;
    let table: Table =
        toml::from_str(&text).with_context(|| format!("{} is not valid", path.display()))?;
    let root = machine.root();
    let here = root.join(INSIDE.trim_start_matches('/'));
    for (name, text) in &table.dmi {
        write(&here.join("class/dmi/id").join(name), &format!("{text}\n"))?;
    }
    program(&root.join(FIRST.trim_start_matches('/')), FIRST_PROGRAM)?;
    program(&root.join("usr/bin/systemd-detect-virt"), DETECT_VIRT)?;
    write(&root.join("etc/cloud/cloud.cfg.d/99-testbed.cfg"), SETTINGS)?;
    write(
        &root.join("usr/lib/systemd/network/90-testbed.network"),
        NETWORK,
    )?;
    // It waits two minutes for a card with the name that Azure gives, but cards are not renamed in a container.
    let waits = "etc/systemd/system/systemd-networkd-wait-online.service";
    symlink("/dev/null", root.join(waits)).context("cannot mask a unit")?;
    let hosts = root.join("etc/hosts");
    let mut known = fs::read_to_string(&hosts).context("cannot read the machine's hosts")?;
    for (address, name) in table.addresses.iter().zip(&table.names) {
        known.push_str(&format!("{address}\t{name}\n"));
    }
    fs::write(&hosts, known).context("cannot write the machine's hosts")?;
    for form in fs::read_dir(bed.repo.join("cloud-init")).context("cannot read cloud-init")? {
        let form = form.context("cannot read cloud-init")?;
        // cloud-init does not read the files of the other forms.
        for file in ["user-data.yaml", "user-data.mime"] {
            let from = form.path().join(file);
            if from.exists() {
                let name = form.file_name();
                let at = format!("{INSIDE}/cloud-init/{}-{file}", name.display());
                machine.put(&from, &at)?;
            }
        }
    }
    let service = Service {
        cloud,
        answers: table.answers,
        user_data: user_data.into(),
    };
    serve(machine, &table.addresses, &service)
}

/// Starts the service, which runs as long as the machine exists.
fn serve(machine: &Machine, addresses: &[String], service: &Service) -> Result<()> {
    let document = machine.log("metadata.json");
    let text = serde_json::to_vec(service).context("cannot write the metadata")?;
    fs::write(&document, text).context("cannot write the metadata")?;
    // The running program, even if its file was compiled again in the meantime.
    let program = format!("/proc/{}/exe", std::process::id());
    let document = document.to_string_lossy().into_owned();
    let mut argv = vec![program, "metadata".into(), document];
    for address in addresses {
        machine.has_address(address)?;
        argv.push(format!("{address}:80"));
    }
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    let log = machine.log("metadata.log");
    let mut child = machine.serve(&argv, &log)?;
    let end = Instant::now() + START;
    while Instant::now() < end {
        let text = fs::read_to_string(&log).unwrap_or_default();
        if text.matches(READY).count() == addresses.len() {
            return Ok(());
        }
        if let Some(status) = child.try_wait().context("cannot wait for the service")? {
            let said = out::tail(&text, 5);
            bail!("the metadata service exited with {status}: {said}");
        }
        thread::sleep(Duration::from_millis(10));
    }
    bail!("the metadata service does not listen")
}

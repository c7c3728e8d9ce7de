//! Detects the cloud and the instance from the firmware and from cloud-init's files.
//!
//! A key that neither of them reports is null, and the reason is recorded. A metadata service may
//! report it later.

use serde_json::Value;

use crate::{
    facts::{Cloud, reader::FactReader},
    model::{
        clouds::{self, CloudRow, FirmwareMark, InstanceKey},
        pattern,
    },
};

/// The initial reason a cloud key is unknown.
pub(super) const UNREPORTED: &str = "not reported by the firmware or cloud-init";

impl Cloud {
    /// The keys that a metadata service also reports.
    pub(super) fn keys(&self) -> [(&'static str, &Option<String>); 5] {
        [
            ("cloud.instance-id", &self.instance_id),
            ("cloud.instance-type", &self.instance_type),
            ("cloud.lifecycle", &self.lifecycle),
            ("cloud.region", &self.region),
            ("cloud.zone", &self.zone),
        ]
    }
}

const CLOUD_INIT: &str = "/run/cloud-init/instance-data.json";

/// DMI data of the machine, and the UUID that Xen reports to a guest. Fields are empty if they are not
/// reported.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Dmi {
    pub sys_vendor: String,
    pub product_name: String,
    pub product_version: String,
    pub board_vendor: String,
    pub bios_vendor: String,
    pub chassis_asset_tag: String,
    pub hypervisor_uuid: String,
    /// Whether a DMI table exists.
    pub present: bool,
}

impl Dmi {
    pub(super) fn read(reader: &mut FactReader<'_>) -> Self {
        let mut value = |name: &str| {
            reader
                .value("cloud.provider", &format!("/sys/class/dmi/id/{name}"))
                .unwrap_or_default()
        };
        let mut dmi = Self {
            sys_vendor: value("sys_vendor"),
            product_name: value("product_name"),
            product_version: value("product_version"),
            board_vendor: value("board_vendor"),
            bios_vendor: value("bios_vendor"),
            chassis_asset_tag: value("chassis_asset_tag"),
            ..Self::default()
        };
        dmi.present = reader.exists("cloud.provider", "/sys/class/dmi/id");
        dmi.hypervisor_uuid = reader
            .value("cloud.provider", "/sys/hypervisor/uuid")
            .unwrap_or_default();
        dmi
    }
}

/// Instance data reported by cloud-init.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct CloudInit {
    pub provider: Option<String>,
    pub instance_id: Option<String>,
    pub instance_type: Option<String>,
    pub lifecycle: Option<String>,
    pub region: Option<String>,
    pub zone: Option<String>,
}

impl CloudInit {
    pub(super) fn read(reader: &mut FactReader<'_>) -> Self {
        let Some(text) = reader.text("cloud", CLOUD_INIT) else {
            return Self::default();
        };
        match serde_json::from_str(&text) {
            Ok(value) => parse_cloud_init(&value),
            Err(error) => {
                reader.unknown(
                    "cloud",
                    format!("`{CLOUD_INIT}` is not valid JSON: {error}"),
                );
                Self::default()
            }
        }
    }
}

/// Returns the cloud and the instance.
pub(super) fn gather(reader: &mut FactReader<'_>, dmi: &Dmi, init: &CloudInit) -> Cloud {
    let row = recognised(dmi);
    let provider = row
        .map(|(row, _)| row.name.clone())
        .or_else(|| init.provider.clone());
    let Some(provider) = provider else {
        // If DMI data exists but no cloud is identified, the machine is not in a known cloud.
        if !dmi.present {
            reader.unknown("cloud.provider", "`/sys/class/dmi/id` does not exist");
        }
        return Cloud::default();
    };
    let from_product = row
        .filter(|(_, mark)| mark.product_is_type)
        .and(instance_type(&dmi.product_name));
    let instance_type = from_product.or_else(|| init.instance_type.clone());
    let cloud = Cloud {
        provider: Some(provider),
        instance_id: init.instance_id.clone(),
        instance_type,
        lifecycle: init.lifecycle.clone(),
        region: init.region.clone(),
        zone: init.zone.clone(),
    };
    for (fact, _) in cloud.keys().iter().filter(|(_, value)| value.is_none()) {
        reader.unknown(
            *fact,
            format!("{UNREPORTED}, and no metadata service was queried"),
        );
    }
    cloud
}

/// Returns the first cloud with a marker that matches the firmware.
fn recognised(dmi: &Dmi) -> Option<(&'static CloudRow, &'static FirmwareMark)> {
    let marks = |row: &'static CloudRow| row.firmware.iter().map(move |mark| (row, mark));
    let mut all = clouds::all().iter().flat_map(marks);
    all.find(|(_, mark)| matches(mark, dmi))
}

fn matches(mark: &FirmwareMark, dmi: &Dmi) -> bool {
    let pairs = [
        (&mark.sys_vendor, &dmi.sys_vendor),
        (&mark.product_name, &dmi.product_name),
        (&mark.chassis_asset_tag, &dmi.chassis_asset_tag),
        (&mark.hypervisor_uuid, &dmi.hypervisor_uuid),
    ];
    pairs.iter().all(|(wanted, found)| {
        wanted
            .as_deref()
            .is_none_or(|wanted| pattern::matches(wanted, found))
    })
}

/// Parses an instance type such as `p5.48xlarge`: two words of lower-case letters, digits and
/// dashes, separated by a dot.
fn instance_type(product: &str) -> Option<String> {
    let word = |word: &str| {
        !word.is_empty()
            && word
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    let (family, size) = product.split_once('.')?;
    (word(family) && word(size)).then(|| product.to_owned())
}

/// Parses the instance data. `v1` is the stable part of cloud-init's file. The structure of `ds` may
/// change, so a missing key there is not an error.
fn parse_cloud_init(root: &Value) -> CloudInit {
    let text = |pointer: &str| {
        let text = root.pointer(pointer).and_then(Value::as_str);
        text.filter(|text| !text.is_empty() && !text.starts_with("redacted for"))
    };
    let named = text("/v1/cloud_name");
    let mut all = clouds::all().iter();
    let row = all.find(|row| row.cloud_init.is_some() && row.cloud_init.as_deref() == named);
    let of_cloud = |key| {
        let rules = row.and_then(|row| row.instance_data.get(&key)).into_iter();
        (rules.flatten()).find_map(|rule| rule.meaning(text(&rule.at)?))
    };
    CloudInit {
        provider: row.map(|row| row.name.clone()),
        // cloud-init uses this ID if no data source responded, so the ID does not identify the machine.
        instance_id: (text("/v1/instance_id").filter(|id| *id != "iid-datasource-none"))
            .map(str::to_owned),
        instance_type: of_cloud(InstanceKey::InstanceType),
        lifecycle: of_cloud(InstanceKey::Lifecycle),
        region: text("/v1/region").map(str::to_owned),
        zone: text("/v1/availability_zone").map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake;

    fn gathered(dmi: &Dmi, init: &CloudInit) -> (Cloud, usize) {
        let (host, _) = fake::host();
        let mut reader = FactReader::new(host.reader().files());
        let cloud = gather(&mut reader, dmi, init);
        (cloud, reader.into_unknown().len())
    }

    fn dmi(vendor: &str, product: &str, asset_tag: &str) -> Dmi {
        Dmi {
            sys_vendor: vendor.to_owned(),
            product_name: product.to_owned(),
            chassis_asset_tag: asset_tag.to_owned(),
            present: true,
            ..Dmi::default()
        }
    }

    #[test]
    fn other_firmware_is_not_a_cloud() {
        for (vendor, product, tag) in rows! {
            "Microsoft Corporation", "Virtual Machine", "other";
            "NVIDIA", "DGXH100", "";
        } {
            let (cloud, _) = gathered(&dmi(vendor, product, tag), &CloudInit::default());
            assert_eq!(cloud, Cloud::default(), "{vendor} {product}");
        }
    }

    #[test]
    fn cloud_is_unknown_without_firmware_and_absent_with_other_firmware() {
        assert_eq!(gathered(&Dmi::default(), &CloudInit::default()).1, 1);
        assert_eq!(
            gathered(&dmi("Dell Inc.", "R760xa", ""), &CloudInit::default()).1,
            0
        );
        let google = dmi("Google", "Google Compute Engine", "");
        assert_eq!(gathered(&google, &CloudInit::default()).1, 5);
    }

    #[test]
    fn instance_data_of_cloud_init_is_parsed() {
        let aws = serde_json::json!({
            "v1": {"cloud_name": "aws", "instance_id": "i-0929128ff2f73a2f1",
                "region": "us-east-2", "availability_zone": "us-east-2b"},
            "ds": {"meta_data": {"instance-type": "g5.xlarge", "instance-life-cycle": "spot"}},
        });
        assert_eq!(
            parse_cloud_init(&aws),
            CloudInit {
                provider: Some("aws".to_owned()),
                instance_id: Some("i-0929128ff2f73a2f1".to_owned()),
                instance_type: Some("g5.xlarge".to_owned()),
                lifecycle: Some("spot".to_owned()),
                region: Some("us-east-2".to_owned()),
                zone: Some("us-east-2b".to_owned()),
            }
        );
        let azure = serde_json::json!({
            "v1": {"cloud_name": "azure", "instance_id": "x"},
            "ds": {"meta_data": {"imds": {"compute":
                {"vmSize": "Standard_ND96isr_H100_v5", "priority": "Regular"}}}},
        });
        let azure = parse_cloud_init(&azure);
        assert_eq!(
            azure.instance_type.as_deref(),
            Some("Standard_ND96isr_H100_v5")
        );
        assert_eq!(azure.lifecycle.as_deref(), Some("on-demand"));
        let none = serde_json::json!({
            "v1": {"cloud_name": "none", "instance_id": "iid-datasource-none"},
            "ds": "redacted for non-root user",
        });
        assert_eq!(parse_cloud_init(&none), CloudInit::default());
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in ".*", product in "[a-z0-9.-]*") {
            if let Ok(value) = serde_json::from_str(&text) {
                let _ = parse_cloud_init(&value);
            }
            let _ = instance_type(&product);
            let _ = gathered(&dmi(&text, &product, &text), &CloudInit::default());
        }
    }
}

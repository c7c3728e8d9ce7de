//! The validation record: the inputs of a validation, its boot, and its result.
//!
//! A record is valid only for its inputs and its boot, because a GPU, a link or the fabric can fail at a reboot. The next
//! `install` or the resumed run therefore validates again. A reboot alone is not drift: `check` only warns, and `plan` exits
//! with 0, because `validation.devices` inspects the GPUs in each boot. No unit validates at each boot, because it would
//! compete with the workload for the GPUs.

/// Prefix of a device line.
const DEVICE: &str = "device=";
/// Prefix of the boot line.
const BOOT: &str = "boot=";
/// Prefix of the time line.
const AT: &str = "validated-at=";
/// Prefix of the result line.
const RESULT: &str = "result=";

/// A validation record. Each line is `name=value`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ValidationRecord {
    /// The inputs, one per line.
    pub inputs: String,
    /// The boot id of the validation. Older versions did not record it.
    pub boot: Option<String>,
    /// The time of the validation.
    pub at: Option<String>,
    /// The description of the result.
    pub result: Option<String>,
}

impl ValidationRecord {
    /// Prefix of the input line with the configured image.
    pub const IMAGE: &str = "image=";

    /// Parses a record. Lines without a known prefix are inputs.
    pub fn parse(text: &str) -> Self {
        let mut record = Self::default();
        for line in text.lines() {
            let value = |name: &str| line.strip_prefix(name).map(str::to_owned);
            if let Some(boot) = value(BOOT) {
                record.boot = Some(boot);
            } else if let Some(at) = value(AT) {
                record.at = Some(at);
            } else if let Some(result) = value(RESULT) {
                record.result = Some(result);
            } else {
                record.inputs.push_str(line);
                record.inputs.push('\n');
            }
        }
        record
    }

    /// The text that [`Self::parse`] reads.
    pub fn text(&self) -> String {
        let about = [(BOOT, &self.boot), (AT, &self.at), (RESULT, &self.result)];
        let mut text = self.inputs.clone();
        for (name, value) in about {
            if let Some(value) = value {
                text.push_str(&format!("{name}{}\n", value.replace('\n', " ")));
            }
        }
        text
    }

    /// Returns `true` if the record has the same inputs. Devices are ignored if NVML reports none now, which is an error of
    /// another step.
    pub fn is_of(&self, inputs: &str, uuids_known: bool) -> bool {
        let lines = |text: &str| -> Vec<String> {
            (text
                .lines()
                .filter(|line| uuids_known || !line.starts_with(DEVICE)))
            .map(str::to_owned)
            .collect()
        };
        lines(&self.inputs) == lines(inputs)
    }

    /// Returns `true` if the validation used this image.
    pub fn is_with_image(&self, image: &str) -> bool {
        self.inputs
            .lines()
            .any(|line| line.strip_prefix(Self::IMAGE) == Some(image))
    }

    /// Returns `true` if the validation was done in this boot, or if the boot is unknown, such as in a mounted image.
    pub fn is_of_boot(&self, boot: Option<&str>) -> bool {
        boot.is_none() || self.boot.as_deref() == boot
    }
}

#[cfg(test)]
mod tests {
    use super::ValidationRecord;

    #[test]
    fn record_round_trips() {
        let record = ValidationRecord {
            inputs: "driver=580\ndevice=GPU-a\n".into(),
            boot: Some("b1".into()),
            at: Some("2026-11-23T22:00:00Z".into()),
            result: Some("1 GPU computes\nright".into()),
        };
        let text = record.text();
        assert!(text.ends_with("result=1 GPU computes right\n"));
        let read = ValidationRecord::parse(&text);
        assert_eq!(read.text(), text);
        assert!(read.is_of("driver=580\ndevice=GPU-a\n", true));
        assert!(!read.is_of("driver=580\n", true));
        assert!(read.is_of("driver=580\n", false));
    }

    #[test]
    fn record_is_only_valid_in_its_boot() {
        let record = ValidationRecord::parse("driver=580\nboot=b1\n");
        assert!(record.is_of_boot(Some("b1")) && !record.is_of_boot(Some("b2")));
        assert!(record.is_of_boot(None));
        // A record of an older version.
        assert!(!ValidationRecord::parse("driver=580\n").is_of_boot(Some("b1")));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_parsed_and_round_trips(
            text in "((boot=|validated-at=|result=|device=)?[a-z= ]{0,6}\n){0,8}",
        ) {
            let record = ValidationRecord::parse(&text);
            proptest::prop_assert_eq!(ValidationRecord::parse(&record.text()), record);
        }
    }
}

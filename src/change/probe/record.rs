//! The record of a proof: what it depends on, the boot in which it was made, and its result.
//!
//! A record counts for its inputs and for its boot, because a boot can lose a GPU, a link or the
//! fabric: the next `install` proves again, and so does the resumed run. But a healthy node that was
//! rebooted has not drifted: `check` warns, and `plan` ends with 0, because `validation.devices` looks
//! at the GPUs anyway. No unit proves at each boot: it would compete with the work of the node for the
//! GPUs.

/// Begins the line of a device.
const DEVICE: &str = "device=";
/// Begins the line with the boot.
const BOOT: &str = "boot=";
/// Begins the line with the time.
const AT: &str = "proven-at=";
/// Begins the line with the result in words.
const RESULT: &str = "result=";

/// The record of a proof. Each line is `name=value`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProofRecord {
    /// What it depends on, one per line.
    pub inputs: String,
    /// The boot in which it was made, by the kernel's boot id; older versions have not recorded it.
    pub boot: Option<String>,
    /// When.
    pub at: Option<String>,
    /// The result, in words.
    pub result: Option<String>,
}

impl ProofRecord {
    /// Begins the input line of the image that settings name.
    pub const IMAGE: &str = "image=";

    /// Reads a record. A line that is of no other kind is an input.
    #[must_use]
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
    #[must_use]
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

    /// Whether it depends on the same. What NVML does not tell now is no difference: another step names
    /// that.
    #[must_use]
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

    /// Whether it was made in this image.
    #[must_use]
    pub fn is_with_image(&self, image: &str) -> bool {
        self.inputs
            .lines()
            .any(|line| line.strip_prefix(Self::IMAGE) == Some(image))
    }

    /// Whether it was made in this boot. Where the boot is not known, as in a mounted image, nothing can
    /// be said against it.
    #[must_use]
    pub fn is_of_boot(&self, boot: Option<&str>) -> bool {
        boot.is_none() || self.boot.as_deref() == boot
    }
}

#[cfg(test)]
mod tests {
    use super::ProofRecord;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = ProofRecord {
            inputs: "driver=580\ndevice=GPU-a\n".into(),
            boot: Some("b1".into()),
            at: Some("2026-11-23T22:00:00Z".into()),
            result: Some("1 GPU computes\nright".into()),
        };
        let text = record.text();
        assert!(text.ends_with("result=1 GPU computes right\n"));
        let read = ProofRecord::parse(&text);
        assert_eq!(read.text(), text);
        assert!(read.is_of("driver=580\ndevice=GPU-a\n", true));
        assert!(!read.is_of("driver=580\n", true));
        assert!(read.is_of("driver=580\n", false));
    }

    #[test]
    fn a_record_ends_with_its_boot() {
        let record = ProofRecord::parse("driver=580\nboot=b1\n");
        assert!(record.is_of_boot(Some("b1")) && !record.is_of_boot(Some("b2")));
        assert!(record.is_of_boot(None));
        // One of an older version.
        assert!(!ProofRecord::parse("driver=580\n").is_of_boot(Some("b1")));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_and_what_was_read_stays(
            text in "((boot=|proven-at=|result=|device=)?[a-z= ]{0,6}\n){0,8}",
        ) {
            let record = ProofRecord::parse(&text);
            proptest::prop_assert_eq!(ProofRecord::parse(&record.text()), record);
        }
    }
}

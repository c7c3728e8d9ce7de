//! The answers of the `compat` command.

use gpu_bootstrap::compat::question::{self, Compatibility, Question, QuestionError};
use gpu_bootstrap::model::gpu::SupportedFlavours;

use crate::matrix;

fn ask(gpu: &str, cuda: &str, driver: &str, kernel: &str) -> question::Answer {
    fn given<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> Option<T> {
        (!text.is_empty()).then(|| text.parse().unwrap())
    }
    let question = Question {
        gpu: given(gpu),
        cuda: given(cuda),
        driver: given(driver),
        kernel: given(kernel),
        os: None,
    };
    question::answer(matrix(), &question).unwrap()
}

#[test]
fn verdicts() {
    use Compatibility::{Compatible, Incompatible, NeedsForwardCompat, Unknown};
    for (gpu, cuda, driver, kernel, want) in [
        ("H100 PCIe", "", "", "", Compatible),
        ("H100 PCIe", "12.4", "550", "", Compatible),
        ("H100 PCIe", "12.4", "535.261.03", "", Compatible),
        ("10de:2330", "", "520.61.05", "", Incompatible),
        ("H200 SXM", "", "535", "", Incompatible),
        ("V100", "13.0", "", "", Incompatible),
        ("V100", "12.9", "580", "", Compatible),
        ("V100", "", "590", "", Incompatible),
        ("A100 SXM4 80GB", "13.0", "535", "", NeedsForwardCompat),
        ("RTX 3090", "13.0", "535", "", Incompatible),
        ("", "12.0", "470", "", NeedsForwardCompat),
        ("", "12.0", "510", "", Incompatible),
        ("", "99.0", "580", "", Unknown),
        ("10de:3fff", "", "", "", Unknown),
        ("10de:0fff", "", "580", "", Unknown),
        ("", "", "640", "", Unknown),
        ("", "", "535.274.02", "6.19", Incompatible),
        ("", "", "535.274.02", "6.19.6-1-amd64", Unknown),
        ("", "", "580.178.04", "6.1.0-44-amd64", Compatible),
        ("", "13.0", "", "", Compatible),
        ("B200", "12.8", "570.133.20", "", Compatible),
    ] {
        let answer = ask(gpu, cuda, driver, kernel);
        assert_eq!(
            answer.verdict, want,
            "{gpu} {cuda} {driver} {kernel}: {:?}",
            answer.why
        );
        assert!(!answer.why.is_empty(), "{gpu} {cuda} {driver} {kernel}");
    }
}

#[test]
fn answers_have_the_documented_form() {
    let answer = ask("V100", "12.4", "", "");
    let json = serde_json::to_value(&answer).unwrap();
    let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "schema",
            "verdict",
            "why",
            "driver",
            "module-flavour",
            "sources"
        ]
    );
    assert_eq!(json["schema"], 1);
    assert_eq!(json["verdict"], "compatible");
    assert_eq!(json["driver"]["min"], "525.60.13");
    assert_eq!(json["driver"]["max-branch"], "580");
    assert_eq!(json["driver"]["recommended"], "580.178.04");
    assert_eq!(json["module-flavour"], "proprietary");
    assert!(
        json["sources"][0]
            .as_str()
            .unwrap()
            .contains("CUDA release-notes")
    );
    let json = serde_json::to_value(ask("", "", "580", "")).unwrap();
    assert!(json["module-flavour"].is_null() && json["driver"]["min"].is_null());
    assert_eq!(
        ask("GB200", "", "", "").module_flavour,
        Some(SupportedFlavours::Open)
    );
    assert_eq!(
        ask("T4", "", "", "").module_flavour,
        Some(SupportedFlavours::Either)
    );
}

#[test]
fn questions_that_cannot_be_answered() {
    let empty = question::answer(matrix(), &Question::default());
    assert_eq!(empty, Err(QuestionError::Empty));
    for name in ["H100", "H300X", "RTX PRO 6000"] {
        let question = Question {
            gpu: Some(name.to_owned()),
            ..Question::default()
        };
        let error = question::answer(matrix(), &question).unwrap_err();
        let QuestionError::Gpu(cause) = error else {
            panic!("{error}")
        };
        assert!(cause.to_string().contains(name), "{cause}");
    }
}

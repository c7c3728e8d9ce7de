//! The results of the `compat` command.

use gpu_compat::identity::SupportedFlavors;
use gpu_compat::question::{self, Compatibility, EmptyQuestion, MachineGpus, Question};
use gpu_compat::version::Branch;

use crate::{gpu, matrix};

fn ask(gpu: &str, cuda: &str, driver: &str, kernel: &str) -> question::Answer {
    fn given<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> Option<T> {
        (!text.is_empty()).then(|| text.parse().unwrap())
    }
    let question = Question {
        gpu: given(gpu),
        cuda: given(cuda),
        driver: given(driver),
        kernel: given(kernel),
        ..Question::default()
    };
    question::answer(matrix(), &question).unwrap()
}

#[test]
fn driver_below_security_floor_lists_the_bulletin() {
    let said = ask("H100 PCIe", "", "535.261.03", "").why.join("; ");
    assert!(said.contains("bulletin 5821 of 2026-05-19"), "{said}");
}

#[test]
fn recommended_driver_is_in_the_sources_of_the_system() {
    let of = |gpu: &str, branches: &[u32]| {
        let question = Question {
            gpu: Some(gpu.to_owned()),
            branches: Some(branches.iter().map(|one| Branch(*one)).collect()),
            ..Question::default()
        };
        question::answer(matrix(), &question).unwrap()
    };
    let branch = |answer: &question::Answer| {
        let driver = answer.driver.recommended.as_ref();
        driver.map(|driver| driver.branch().0)
    };
    assert_eq!(branch(&of("T4", &[580, 595, 610])), Some(580));
    let without = of("T4", &[550, 595, 610]);
    assert_eq!(branch(&without), Some(595));
    assert!((without.branches.iter()).all(|row| row.branch != Branch(580)));
    // Branch 580 is the last one of Volta.
    let none = of("Tesla V100 PCIe 16GB", &[595, 610]);
    assert_eq!(none.verdict, Compatibility::Incompatible);
    assert_eq!(branch(&none), None);
    let alone = Question {
        branches: Some([Branch(580)].into()),
        ..Question::default()
    };
    assert_eq!(question::answer(matrix(), &alone), Err(EmptyQuestion));
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
        // Releases that do not exist.
        ("L4", "12.10", "", "", Incompatible),
        ("L4", "12.7", "580", "", Incompatible),
        ("L4", "", "581", "", Incompatible),
        ("L4", "", "581.15", "", Incompatible),
        ("10de:3fff", "", "", "", Unknown),
        ("10de:0fff", "", "580", "", Incompatible), // Kepler, by the range of its id
        ("10de:0040", "", "580", "", Unknown),
        ("", "", "640", "", Unknown),
        // The row of the first 10.2 release has no update number.
        ("", "10.2.0", "418.226.00", "", NeedsForwardCompat),
        ("", "", "535.274.02", "6.19", Incompatible),
        ("", "", "535.274.02", "6.19.6-1-amd64", Unknown),
        ("", "", "590.48.01", "6.19.7", Unknown),
        ("", "", "590.48.01", "6.18.9", Compatible),
        ("", "", "580.178.04", "6.1.0-44-amd64", Compatible),
        // Kernels newer than all data for the version.
        ("", "", "580.178.04", "7.3.0-1-liquorix-amd64", Unknown),
        ("", "", "580.159.03", "7.1.3-4-liquorix-amd64", Unknown),
        ("", "", "580.159.03", "7.0.14-2-liquorix-amd64", Compatible),
        ("", "", "580.178.04", "7.9.1", Unknown),
        ("", "", "580.65.06", "6.8.0-45-generic", Compatible),
        ("", "", "550.54.14", "6.8.0-45-generic", Compatible),
        ("", "", "535.54.03", "5.15.0-161-generic", Compatible),
        ("", "", "450.248.02", "5.15.0-161-generic", Compatible),
        ("", "", "595.112.07", "6.8.0-45-generic", Compatible),
        ("", "", "595.112.07", "6.18.0-1-generic", Unknown),
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
fn reason_for_an_unknown_result_comes_first() {
    let why = ask("10de:3fff", "", "", "").why;
    assert!(why[0].contains("is not in the matrix"), "{why:?}");
}

/// A newer long-term branch exists, but is not recommended yet.
#[test]
fn reason_for_older_long_term_branch_is_reported() {
    let why = ask("L4", "", "", "").why.join("; ");
    assert!(
        why.contains("branch 620 (long-term support branch, supported until 2029-09) is newer"),
        "{why}"
    );
    // Branch 620 does not support a V100.
    let why = ask("Tesla V100 PCIe 16GB", "", "", "").why.join("; ");
    assert!(!why.contains("620"), "{why}");
}

#[test]
fn baseboards_need_the_fabric_manager() {
    for (name, words) in rows! {
        "HGX H100", "needs the fabric manager of exactly the driver version";
        "8xH100", "needs the fabric manager of exactly the driver version";
        "DGX B200", "needs the fabric manager and the NVLink subnet manager";
        "4xH100 SXM", "if the machine has its NVSwitches";
        "H100 SXM5 80GB", "if the machine has its NVSwitches";
    } {
        let why = ask(name, "", "", "").why.join("; ");
        assert!(why.contains(words), "{name}: {why}");
        let unsure = why.contains("if the machine has");
        assert_eq!(unsure, words.starts_with("if the machine"), "{name}: {why}");
    }
    let why = ask("8xH100 PCIe", "", "", "").why.join("; ");
    assert!(!why.contains("needs the fabric manager"), "{why}");
}

/// If both module flavors work, the result contains the default of the branch.
#[test]
fn a_driver_is_evaluated_with_its_default_modules() {
    let answer = ask("T4", "", "580.178.04", "");
    let said = answer.why.join("; ");
    assert!(said.contains("with open kernel modules"), "{said}");
}

#[test]
fn results_have_the_documented_format() {
    let answer = ask("10de:1db1", "12.4", "", "");
    let json = serde_json::to_value(&answer).unwrap();
    let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "schema",
            "verdict",
            "why",
            "driver",
            "module-flavor",
            "sources"
        ]
    );
    assert_eq!(json["schema"], 1);
    assert_eq!(json["verdict"], "compatible");
    assert_eq!(json["driver"]["min"], "525.60.13");
    assert_eq!(json["driver"]["max-branch"], "580");
    assert_eq!(json["driver"]["recommended"], "580.178.04");
    assert_eq!(json["module-flavor"], "proprietary");
    assert!(
        json["sources"][0]
            .as_str()
            .unwrap()
            .contains("CUDA release-notes")
    );
    let json = serde_json::to_value(ask("", "", "580", "")).unwrap();
    assert!(json["module-flavor"].is_null() && json["driver"]["min"].is_null());
    assert_eq!(
        ask("GB200", "", "", "").module_flavor,
        Some(SupportedFlavors::Open)
    );
    assert_eq!(
        ask("T4", "", "", "").module_flavor,
        Some(SupportedFlavors::Either)
    );
}

/// A B200 requires open modules, a V100 proprietary ones.
#[test]
fn gpus_without_common_modules_get_no_flavor() {
    for (gpus, want) in rows! {
        ["10de:1db1", "10de:2901"], None;
        ["10de:2901", "10de:1db1"], None;
        ["10de:2901", "10de:1eb8"], Some(SupportedFlavors::Open);
        ["10de:1eb8", "10de:1db1"], Some(SupportedFlavors::Proprietary);
    } {
        let question = Question {
            machine: Some(MachineGpus {
                gpus: gpus.map(gpu).to_vec(),
                nvswitch: false,
            }),
            cuda: "12.8".parse().ok(),
            ..Question::default()
        };
        let answer = question::answer(matrix(), &question).unwrap();
        assert_eq!(answer.module_flavor, want, "{gpus:?}");
        if want.is_none() {
            assert_eq!(answer.verdict, Compatibility::Incompatible);
        }
    }
}

/// The verdict for a cuDNN version, and all reasons as text.
fn cudnn(version: &str, gpu: &str, cuda: &str, driver: &str) -> (Compatibility, String) {
    let question = Question {
        cudnn: version.parse().ok(),
        gpu: (!gpu.is_empty()).then(|| gpu.to_owned()),
        cuda: cuda.parse().ok(),
        driver: driver.parse().ok(),
        ..Question::default()
    };
    assert!(question.cudnn.is_some(), "{version}");
    let answer = question::answer(matrix(), &question).unwrap();
    (answer.verdict, answer.why.join("; "))
}

#[test]
fn cudnn_queries_work_like_cuda_queries() {
    use Compatibility::{Compatible, Incompatible, NeedsForwardCompat, Unknown};
    for (version, gpu, cuda, driver, want, why) in rows! {
        // One of its packages is enough.
        "9.5", "", "", "470.256.02", Compatible,
            "for CUDA 11 (released for 11.0 to 11.8) needs driver 450.80.02";
        "9.5", "", "", "470.256.02", Compatible,
            "cuDNN 9.5 for CUDA 12 needs driver 525.60.13 or newer; 470.256.02 is older";
        "9.5", "", "12.4", "470.256.02", NeedsForwardCompat, "cuda-compat-12-4";
        "9.5", "", "12.0", "525.60.13", Compatible, "525.60.13 supports it";
        "9.5", "", "", "418.226.00", Incompatible, "418.226.00 is older";
        "9.5", "", "10.2", "", Incompatible, "packages for CUDA 12 and 11, but not for 10.2";
        "9.5", "", "12.9", "580", Compatible, "released for 12.0 to 12.6; 12.9 is newer";
        "9.10", "", "11.4", "580", Unknown, "was released for 11.8; 11.4 is older";
        // GPUs.
        "9.17", "V100", "", "580", Incompatible,
            "it requires compute capability 7.5 or newer, and the GPU has 7.0";
        "9.10", "V100", "", "580", Compatible, "cuDNN 9.10 for CUDA 12";
        // The first and the last compute capability of a row belong to it.
        "9.17", "T4", "13.0", "580", Compatible, "needs driver 580.65.06 or newer";
        "9.5", "H100", "12.6", "580", Compatible, "needs driver 525.60.13 or newer";
        "9.0", "B200", "12.8", "580", Unknown, "ends with compute capability 9.0, and the GPU has 10.0";
        "9.17", "10de:2e12", "13.0", "580", Compatible, "needs driver 580.65.06 or newer";
        // Missing data never makes a result incompatible, and is reported.
        "9.1", "", "", "580", Compatible, "partly unverified";
        "9.1", "", "", "418.226.00", Unknown, "418.226.00 is older";
        "9.3", "", "12.4", "580", Compatible,
            "cuDNN 9.3 is not in the matrix: the data of 9.1 is used";
        "9.28", "", "13.0", "580", Unknown, "cuDNN 9.28 is not in the matrix: the data of 9.17";
        "9.13", "", "13.0", "580", Compatible, "the data of 9.12 is used";
        "9.28", "V100", "", "580", Incompatible, "it requires compute capability 7.5";
        "6.0", "", "", "580", Unknown, "the requirements of cuDNN 6.0 are unknown";
        // The required driver.
        "9.17", "", "13.0", "", Compatible, "needs driver 580.65.06 or newer; 580.178.04 supports it";
        "9.17", "V100", "", "", Incompatible, "possible with another version of cuDNN";
    } {
        let (verdict, said) = cudnn(version, gpu, cuda, driver);
        assert_eq!(verdict, want, "{version} {gpu} {cuda} {driver}: {said}");
        assert!(
            said.contains(why),
            "{version} {gpu} {cuda} {driver}: {said}"
        );
    }
    let question = Question {
        cudnn: "9.17".parse().ok(),
        cuda: "13.0".parse().ok(),
        ..Question::default()
    };
    let answer = question::answer(matrix(), &question).unwrap();
    assert_eq!(answer.driver.min, "580.65.06".parse().ok());
    assert!(answer.citations.iter().any(|one| one.contains("cuDNN")));
}

/// The table row of a branch: CUDA versions and kernel modules.
fn line_of(answer: &question::Answer, branch: u32) -> Option<String> {
    let row = answer.branches.iter().find(|row| row.branch.0 == branch)?;
    let of = |version: Option<gpu_compat::version::CudaVersion>| {
        version.map_or_else(|| "-".to_owned(), |version| version.to_string())
    };
    let (min, max, limited) = (of(row.cuda_min), of(row.cuda_max), of(row.cuda_limited_max));
    Some(format!("{min} {max} {limited} {:?}", row.module_flavor))
}

#[test]
fn query_with_only_a_gpu_lists_supported_branches() {
    for (name, branch, line) in [
        ("H100 PCIe", 535, Some("11.8 12.2 12.9 Either")),
        ("H100 PCIe", 470, None),
        ("V100", 580, Some("9.0 12.9 - Proprietary")),
        ("V100", 595, None),
        ("B200", 570, Some("12.8 12.8 12.9 Open")),
        ("B200", 535, None),
        // The branches that all boards of the name share.
        ("H100", 580, Some("11.8 13.0 13.5 Either")),
        ("p5.48xlarge", 580, Some("11.8 13.0 13.5 Either")),
        // A part of a GPU, and an unknown GPU.
        ("g6f.xlarge", 580, None),
        ("10de:ffff", 580, None),
    ] {
        let answer = ask(name, "", "", "");
        assert_eq!(line_of(&answer, branch).as_deref(), line, "{name} {branch}");
        let newest_first = |pair: &[question::BranchAnswer]| pair[0].branch > pair[1].branch;
        assert!(answer.branches.windows(2).all(newest_first), "{name}");
    }
    for (cuda, driver) in [("12.8", ""), ("", "580")] {
        assert!(ask("H100 PCIe", cuda, driver, "").branches.is_empty());
    }
}

#[test]
fn empty_query_is_an_error_unlike_unknown_names() {
    assert_eq!(
        question::answer(matrix(), &Question::default()),
        Err(EmptyQuestion)
    );
    let answer = ask("H300X", "12.4", "580", "");
    assert_eq!(answer.verdict, Compatibility::Unknown);
    assert!(answer.why[0].contains("H300X"), "{:?}", answer.why);
    // Facts that hold for any GPU are still returned.
    let answer = ask("H300X", "13.0", "510", "");
    assert_eq!(answer.verdict, Compatibility::Incompatible);
}

#[test]
fn machine_facts_do_not_apply_to_unknown_gpus() {
    let question = Question {
        gpu: Some("H300X".to_owned()),
        machine: Some(MachineGpus {
            gpus: vec![gpu("10de:102d")],
            nvswitch: false,
        }),
        driver: "580".parse().ok(),
        ..Question::default()
    };
    let answer = question::answer(matrix(), &question).unwrap();
    assert_eq!(answer.verdict, Compatibility::Unknown, "{:?}", answer.why);
    assert_eq!(answer.driver.max_branch, None);
}

#[test]
fn matching_names_with_equal_results_have_one_result() {
    use Compatibility::{Compatible, Incompatible, Unknown};
    for (gpu, cuda, driver, want) in [
        ("H100", "", "580", Compatible),
        ("h100 sxm", "12.8", "", Compatible),
        ("GH200", "", "580", Compatible),
        ("V100", "", "595", Incompatible),
        ("A100", "11.0", "450.248.02", Compatible),
        ("H100", "", "470", Incompatible),
        // The first driver of the PCIe board is older than the first driver of the SXM board.
        ("H100", "", "520.61.05", Unknown),
    ] {
        let answer = ask(gpu, cuda, driver, "");
        assert_eq!(
            answer.verdict, want,
            "{gpu} {cuda} {driver}: {:?}",
            answer.why
        );
        assert!(
            (answer.why.iter()).any(|why| why.starts_with(&format!("`{gpu}` matches"))),
            "{:?}",
            answer.why
        );
    }
    let answer = ask("H100", "", "520.61.05", "");
    let verdict = |name: &str| {
        let of_it = |gpus: &[String]| gpus.iter().any(|gpu| gpu.starts_with(name));
        let found = answer
            .name_matches
            .iter()
            .find(|name_match| of_it(&name_match.gpus));
        found.map(|name_match| name_match.verdict)
    };
    assert_eq!(verdict("H100 PCIe"), Some(Compatible));
    assert_eq!(verdict("H100 SXM5 80GB"), Some(Incompatible));
    // All boards with this name must be supported.
    assert_eq!(
        ask("H100", "", "", "").driver.min,
        "535.104.05".parse().ok()
    );
}

#[test]
fn instance_types_are_accepted_like_gpus() {
    use Compatibility::{Compatible, Incompatible, Unknown};
    for (name, driver, want, why) in rows! {
        "p5.48xlarge", "580", Compatible, "no rule rejects it";
        "Standard_ND96isr_H100_v5", "", Compatible, "needs the fabric manager";
        "BM.GPU.H100.8", "", Compatible, "needs the fabric manager";
        "VM.GPU.A10.1", "580", Compatible, "no rule rejects it";
        "BM.GPU.B200.8", "580", Compatible, "no rule rejects it";
        "a2-highgpu-1g", "535", Compatible, "branch 535 is end-of-life";
        "g6f.xlarge", "580", Incompatible, "GRID";
        "Standard_NVv4 (family)", "", Incompatible, "AMD";
    } {
        let answer = ask(name, "", driver, "");
        assert_eq!(answer.verdict, want, "{name}: {:?}", answer.why);
        let said = answer.why.iter().any(|text| text.contains(why));
        assert!(said, "{name}: {:?}", answer.why);
        // Whether a type has NVSwitches is known.
        let unsure = |text: &String| text.contains("if the machine has");
        assert!(!answer.why.iter().any(unsure), "{name}: {:?}", answer.why);
    }
    // One fix of an old branch is for ARM only.
    for (name, want) in [("g4dn.xlarge", Unknown), ("g5g.xlarge", Incompatible)] {
        let answer = ask(name, "", "470.223.02", "6.7");
        assert_eq!(answer.verdict, want, "{name}: {:?}", answer.why);
    }
}

#[test]
fn drivers_of_any_age_have_a_result() {
    use Compatibility::{Compatible, Incompatible, NeedsForwardCompat, Unknown};
    for (gpu, cuda, driver, kernel, want) in [
        ("", "9.2", "450.248.02", "", Compatible),
        ("", "9.2", "390.157", "", Incompatible),
        ("", "9.1", "390.157", "", Compatible),
        ("", "8.0", "390.157", "", Compatible),
        // Branches without a row, between those with one.
        ("", "9.2", "396.54", "", Compatible),
        ("", "10.0", "396", "", Incompatible),
        ("", "9.2", "396", "", Unknown),
        ("H100", "", "430.64", "", Incompatible),
        ("V100", "", "396.54", "", Compatible),
        ("T4", "", "396.54", "", Incompatible),
        ("", "", "640", "", Unknown),
        // Branches that were end-of-life before a kernel release.
        ("", "", "340.108", "6.8", Incompatible),
        ("", "", "396.54", "6.8", Unknown),
        ("", "", "450.248.02", "6.4", Compatible),
        ("", "", "450.248.02", "6.5", Unknown),
        ("", "", "96.43.23", "6.1", Compatible),
        ("", "", "550.163.01", "2.6.32", Incompatible),
        ("", "", "580.178.04", "4.4", Incompatible),
        // GPL-only symbols in stable kernels.
        ("H100 PCIe", "", "525.147.05", "6.1.75", Compatible),
        ("10de:1db1", "", "545.29.06", "6.7.2", Compatible),
        ("10de:1db1", "", "545.29.06", "6.7.3", Unknown),
        ("", "12.0", "470", "", NeedsForwardCompat),
    ] {
        let answer = ask(gpu, cuda, driver, kernel);
        assert_eq!(
            answer.verdict, want,
            "{gpu} {cuda} {driver} {kernel}: {:?}",
            answer.why
        );
    }
}

#[test]
fn cuda_without_code_for_a_gpu_is_incompatible() {
    use Compatibility::{Compatible, Incompatible};
    for (gpu, cuda, want) in [
        ("H100 PCIe", "11.7", Incompatible),
        ("H100 PCIe", "11.8", Compatible),
        ("B200", "12.6", Incompatible),
        ("L4", "11.4", Compatible), // runs code for 8.6
        ("L4", "10.2", Incompatible),
        ("T4", "9.2", Compatible), // runs code for 7.0
        ("T4", "8.0", Incompatible),
        ("RTX 5070", "12.6", Incompatible),
        ("V100", "13.0", Incompatible),
    ] {
        for driver in ["", "580"] {
            let answer = ask(gpu, cuda, driver, "");
            assert_eq!(
                answer.verdict, want,
                "{gpu} {cuda} {driver}: {:?}",
                answer.why
            );
        }
    }
    let why = ask("H100 PCIe", "11.7", "580", "").why.join("; ");
    assert!(why.contains("whose first toolkit is 11.8"), "{why}");
}

#[test]
fn cards_without_a_row_are_evaluated_by_architecture() {
    use Compatibility::{Compatible, Incompatible, Unknown};
    for (gpu, driver, want) in [
        ("10de:2786", "580", Compatible), // RTX 4070
        ("RTX 4070", "580", Compatible),
        ("GTX 1080 Ti", "580", Compatible),
        ("GTX 1080 Ti", "595", Incompatible),
        ("10de:1180", "470", Compatible), // GTX 680
        ("10de:1180", "535", Incompatible),
        ("RTX 4070", "470", Incompatible),
        // A new board may need a newer driver of the branch than the given one.
        ("10de:2d19", "580", Unknown),
        ("10de:ffff", "580", Unknown),
    ] {
        let answer = ask(gpu, "", driver, "");
        assert_eq!(answer.verdict, want, "{gpu} {driver}: {:?}", answer.why);
    }
    // The last branch of an architecture supports its cards probably, not certainly.
    let answer = ask("10de:1b06", "", "580", "");
    let why = format!("{:?}", answer.why);
    assert!(why.contains("its first driver is unknown"), "{why}");
}

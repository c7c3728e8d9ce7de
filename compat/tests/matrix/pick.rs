//! Driver selection for real machines, or the reason why no driver is compatible.

use gpu_compat::matrix::Fabric;
use gpu_compat::pick::{Constraints, NoDriver, Pick, pick};
use gpu_compat::rule_result::Rule;
use gpu_compat::version::DriverVersion;

use crate::{gpu, matrix};
use gpu_compat::identity::{Flavor, GpuIdentity};

const V100: &str = "10de:1db1";
const T4: &str = "10de:1eb8";
const A100: &str = "10de:20b2";
const H100: &str = "10de:2330";
const H200: &str = "10de:2335";
const GH200: &str = "10de:2342";
const B200: &str = "10de:2901";
const GB200: &str = "10de:2941";
const RTX_PRO: &str = "10de:2bb5";
const K80: &str = "10de:102d";

fn gpus(ids: &[&str]) -> Constraints {
    Constraints {
        gpus: ids.iter().map(|id| gpu(id)).collect(),
        ..Constraints::default()
    }
}

fn with(ids: &[&str], change: impl FnOnce(&mut Constraints)) -> Constraints {
    let mut constraints = gpus(ids);
    change(&mut constraints);
    constraints
}

fn picked(constraints: &Constraints) -> Pick {
    pick(matrix(), constraints).unwrap_or_else(|no_driver| panic!("{no_driver}"))
}

fn refused(constraints: &Constraints) -> Box<NoDriver> {
    match pick(matrix(), constraints) {
        Ok(pick) => panic!("{pick:?}"),
        Err(refusal) => refusal,
    }
}

/// Branch and flavor in short form, such as `580 open`.
fn brief(constraints: &Constraints) -> String {
    let pick = picked(constraints);
    format!("{} {}", pick.branch, pick.flavor)
}

fn reasons(refusal: &NoDriver) -> String {
    refusal
        .reasons
        .iter()
        .map(|r| r.text.as_str())
        .collect::<Vec<_>>()
        .join("\n")
}

fn candidates(versions: &[&str]) -> Option<Vec<DriverVersion>> {
    Some(versions.iter().map(|text| text.parse().unwrap()).collect())
}

#[test]
fn defaults_per_gpu() {
    for (ids, want) in [
        (&[][..], "580 open"),
        (&[V100], "580 proprietary"),
        (&[T4], "580 open"),
        (&[A100], "580 open"),
        (&[H100], "580 open"),
        (&[H200], "580 open"),
        (&[GH200], "580 open"),
        (&[B200], "580 open"),
        (&[GB200], "580 open"),
        (&[RTX_PRO], "580 open"),
        (&[K80], "470 proprietary"),
        (&["10de:3182"], "580 open"),
        (&["10de:2e12"], "580 open"),
        // The GPU is supported from driver 595.71.05 on.
        (&["10de:2909"], "595 open"),
        (&["10de:3000"], "615 open"),
        // The device id has no row (seen on a Vera Rubin platform in kubevirt/kubevirt#19070). The architecture follows from
        // its id range.
        (&["10de:307f"], "615 open"),
        (&[V100, H100], "580 proprietary"),
        (&[V100, T4, A100], "580 proprietary"),
        (&[T4, B200], "580 open"),
    ] {
        assert_eq!(brief(&gpus(ids)), want, "{ids:?}");
    }
}

/// The first release of a branch has few users. It is selected only if it is configured, or if no other branch supports the
/// GPU.
#[test]
fn new_long_term_branch_is_not_default_yet() {
    let offered = |constraints: &mut Constraints| {
        constraints.candidates = candidates(&["580.178.04", "620.70.06"])
    };
    let constraints = with(&[H100], offered);
    let mut later = matrix().clone();
    assert_eq!(brief(&constraints), "580 open");
    later.as_of = "2027-05-04".parse().expect("a day");
    let pick = pick(&later, &constraints).expect("a driver");
    assert_eq!(pick.branch.to_string(), "620");
    let asked = with(&[H100], |constraints| {
        constraints.branch = Some("620".parse().expect("a branch"))
    });
    assert_eq!(brief(&asked), "620 open");
    // The candidates have no other branch that supports Rubin.
    assert_eq!(brief(&with(&["10de:3041"], offered)), "620 open");
}

#[test]
fn eight_equal_gpus_behave_like_one() {
    let pick = picked(&gpus(&[H100; 8]));
    assert_eq!(
        pick.reasons
            .iter()
            .filter(|r| r.contains("H100 SXM5"))
            .count(),
        2,
        "{pick:?}"
    );
    assert_eq!(pick.fabric, Fabric::Fm);
    assert!(pick.version.is_none() && !pick.assumed && !pick.doubtful);
    assert!(
        pick.reasons[0].contains("long-term support branch"),
        "{:?}",
        pick.reasons
    );
    assert!(pick.citations.contains(&"NT".to_owned()));
}

#[test]
fn boards_require_their_first_driver() {
    for (id, branch, first) in [
        (H100, "520", "525.85.05"),
        (H200, "535", "550.90.07"),
        ("10de:233b", "550", "565.57.01"),
        (GH200, "525", "535.129.03"),
        (B200, "565", "570.86.15"),
        (RTX_PRO, "570", "575.57.08"),
        ("10de:27b8", "520", "525.78.01"),
        ("10de:3182", "575", "580.82.07"),
    ] {
        let refusal = refused(&with(&[id], |constraints| {
            constraints.branch = Some(branch.parse().unwrap())
        }));
        let text = reasons(&refusal);
        assert!(
            text.contains(&format!("needs driver {first} or newer")),
            "{id}: {text}"
        );
        assert!(
            refusal
                .reasons
                .iter()
                .any(|reason| reason.rule == Rule::MinDriver),
            "{text}"
        );
        let near = refusal.nearest_pick.as_ref().unwrap();
        assert_eq!(near.branch.to_string(), "580", "{id}");
        assert!(
            refusal.nearest[0].contains("with another branch: driver 580."),
            "{refusal:?}"
        );
    }
}

#[test]
fn first_driver_is_checked_per_branch() {
    let version = |text: &str| {
        with(&[H200], |constraints| {
            constraints.version = Some(text.parse().unwrap())
        })
    };
    assert!(reasons(&refused(&version("555.42.02"))).contains("555.42.06"));
    assert!(reasons(&refused(&version("550.54.14"))).contains("550.90.07"));
    assert_eq!(
        picked(&version("550.90.07")).version.unwrap().to_string(),
        "550.90.07"
    );
    assert_eq!(picked(&version("560.28.03")).branch.to_string(), "560");
    // A branch between two branches that list the board gives a warning, not an error.
    let h20 = with(&["10de:232c"], |constraints| {
        constraints.branch = Some("560".parse().unwrap())
    });
    let pick = picked(&h20);
    assert!(
        pick.doubtful && pick.warnings.iter().any(|w| w.contains("branch 560")),
        "{pick:?}"
    );
}

#[test]
fn out_of_support_is_a_warning() {
    let pick = picked(&with(&[A100], |constraints| {
        constraints.branch = Some("535".parse().unwrap())
    }));
    assert_eq!(pick.flavor, Flavor::Proprietary);
    assert!(
        pick.warnings
            .iter()
            .any(|w| w.contains("branch 535 is end-of-life")),
        "{pick:?}"
    );
    assert!(!pick.doubtful);
    assert!(
        picked(&gpus(&[K80]))
            .warnings
            .iter()
            .any(|w| w.contains("branch 470 is end-of-life"))
    );
}

#[test]
fn old_and_new_gpus_in_one_machine() {
    let refusal = refused(&gpus(&[V100, B200]));
    let first = &refusal.reasons[0];
    assert_eq!(first.rule, Rule::Pair);
    assert!(
        first.text.contains("Tesla V100 SXM2 16GB (10de:1db1)"),
        "{}",
        first.text
    );
    assert!(first.text.contains("B200 (10de:2901)"), "{}", first.text);
    assert!(
        refusal.nearest[0].contains("different machines"),
        "{:?}",
        refusal.nearest
    );
    // Three models. The error lists only the incompatible pair.
    let refusal = refused(&gpus(&[V100, T4, B200]));
    assert_eq!(
        refusal
            .reasons
            .iter()
            .filter(|r| r.rule == Rule::Pair)
            .count(),
        1
    );
    assert!(
        !refusal.reasons[0].text.contains("T4"),
        "{}",
        refusal.reasons[0].text
    );
    assert_eq!(refused(&gpus(&[K80, H100])).reasons[0].rule, Rule::Pair);
    assert_eq!(refused(&gpus(&[V100, GH200])).reasons[0].rule, Rule::Pair);
}

#[test]
fn flavors() {
    let open = |ids: &[&str]| with(ids, |constraints| constraints.flavor = Some(Flavor::Open));
    let proprietary = |ids: &[&str]| {
        with(ids, |constraints| {
            constraints.flavor = Some(Flavor::Proprietary)
        })
    };
    assert_eq!(brief(&proprietary(&[T4])), "580 proprietary");
    assert_eq!(brief(&open(&[T4])), "580 open");
    for constraints in [
        open(&[V100]),
        open(&[V100, T4]),
        proprietary(&[B200]),
        proprietary(&[GH200]),
    ] {
        let refusal = refused(&constraints);
        assert!(
            refusal.reasons.iter().any(|r| r.rule == Rule::BoardFlavor),
            "{refusal:?}"
        );
        assert!(
            refusal.nearest[0].contains("with the other kernel modules"),
            "{refusal:?}"
        );
    }
    // Branches without one of the two flavors.
    let constraints = with(&[T4], |constraints| {
        constraints.flavor = Some(Flavor::Open);
        constraints.branch = Some("470".parse().unwrap());
    });
    assert_eq!(refused(&constraints).reasons[0].rule, Rule::BranchFlavor);
    let constraints = with(&[T4], |constraints| {
        constraints.flavor = Some(Flavor::Proprietary);
        constraints.branch = Some("615".parse().unwrap());
    });
    assert_eq!(refused(&constraints).reasons[0].rule, Rule::BranchFlavor);
    // GPUs with GSP on a branch that does not default to open modules yet.
    let on_535 = |id| {
        with(&[id], |constraints| {
            constraints.branch = Some("535".parse().unwrap())
        })
    };
    assert_eq!(brief(&on_535(T4)), "535 proprietary");
    assert_eq!(brief(&on_535(GH200)), "535 open");
}

#[test]
fn cuda() {
    let constraints = |id: &'static str, cuda: &str| {
        let list = cuda.split(' ').map(|text| text.parse().unwrap()).collect();
        with(&[id], |constraints| constraints.cuda = list)
    };
    let refusal = refused(&constraints(V100, "13.0"));
    assert_eq!(refusal.reasons[0].rule, Rule::CudaArchitecture);
    assert!(
        reasons(&refusal).contains("its last toolkit is 12.9"),
        "{}",
        reasons(&refusal)
    );
    assert!(
        refusal.nearest[0].contains("without the requested CUDA versions"),
        "{refusal:?}"
    );
    assert_eq!(brief(&constraints(V100, "11.8 12.9")), "580 proprietary");
    assert_eq!(brief(&constraints(H100, "12.4 13.0")), "580 open");
    // Newer than the long-term branch, within its major version.
    let pick = picked(&constraints(H100, "13.2"));
    assert_eq!(pick.branch.to_string(), "580");
    assert!(
        pick.warnings
            .iter()
            .any(|w| w.contains("minor-version compatibility")),
        "{pick:?}"
    );
    // Older than the GPU.
    let pick = picked(&constraints(H100, "11.4"));
    assert!(pick.warnings.iter().any(|w| w.contains("PTX")), "{pick:?}");
    // A version without a row gives a warning, not an error.
    let pick = picked(&constraints(H100, "14.0"));
    assert!(
        pick.doubtful && pick.warnings.iter().any(|w| w.contains("CUDA 14.0")),
        "{pick:?}"
    );
    // An old branch and a new CUDA version are incompatible. The error suggests the compatibility package.
    let on_535 = Constraints {
        branch: Some("535".parse().unwrap()),
        ..constraints(A100, "13.0")
    };
    let refusal = refused(&on_535);
    assert_eq!(refusal.reasons[0].rule, Rule::ForwardCompat);
    assert!(
        reasons(&refusal).contains("cuda-compat-13-0"),
        "{}",
        reasons(&refusal)
    );
    // Before CUDA 11 each release has its own minimum.
    let on_418 = Constraints {
        branch: Some("418".parse().unwrap()),
        ..constraints(V100, "10.2")
    };
    assert!(reasons(&refused(&on_418)).contains("440.33"));
}

#[test]
fn kernels_per_branch() {
    let constraints = |kernel: &str, version: &str| {
        with(&[A100], |constraints| {
            constraints.kernel = Some(kernel.parse().unwrap());
            constraints.version = Some(version.parse().unwrap());
        })
    };
    for (kernel, version, why) in [
        ("6.19", "535.274.02", "535.309.01"),
        ("6.19.3", "580.65.06", "580.119.02"),
        ("6.4", "530.41.03", "branch 530 ended without a fix for it"),
        ("6.4.12", "525.105.17", "525.116.03"),
        ("6.15", "550.163.01", "needs patches from Linux 6.15 on"),
        ("6.10", "470.256.02", "needs patches from Linux 6.10 on"),
        ("4.14", "580.178.04", "needs Linux 4.15"),
    ] {
        let refusal = refused(&constraints(kernel, version));
        assert!(
            refusal.reasons.iter().all(|r| r.rule == Rule::Kernel),
            "{refusal:?}"
        );
        assert!(
            reasons(&refusal).contains(why),
            "{kernel} {version}: {}",
            reasons(&refusal)
        );
    }
    for (kernel, version) in [
        ("6.4", "525.116.03"),
        ("6.4", "535.54.03"),
        ("6.18", "535.274.02"),
        ("6.19", "535.309.01"),
    ] {
        assert!(
            pick(matrix(), &constraints(kernel, version)).is_ok(),
            "{kernel} {version}"
        );
    }
    // Vendor kernels backport patches, so their version number is only evidence.
    for (kernel, version) in [
        ("6.19.6-1-amd64", "535.274.02"),
        ("6.4.0-150600.23-default", "530.41.03"),
        ("5.14.0-687.12.1.el9_8.x86_64", "575.57.08"),
        ("3.10.0-1160.el7.x86_64", "580.178.04"),
    ] {
        let pick = picked(&constraints(kernel, version));
        assert!(
            pick.doubtful && !pick.warnings.is_empty(),
            "{kernel} {version}: {pick:?}"
        );
    }
    let pick = picked(&constraints("6.1.0-44-amd64", "535.261.03"));
    assert!(!pick.doubtful, "{pick:?}");
    // A report about the open modules does not apply to the proprietary ones.
    for (flavor, doubtful) in [(Flavor::Open, true), (Flavor::Proprietary, false)] {
        let mut asked = constraints("6.1.0-56-amd64", "535.261.03");
        asked.flavor = Some(flavor);
        let pick = picked(&asked);
        assert_eq!(pick.doubtful, doubtful, "{pick:?}");
    }
    // The report also applies to later kernels, until the driver version with the fix.
    for (kernel, version, doubtful) in [
        ("6.1.0-55-amd64", "535.261.03", false),
        ("6.1.0-57-cloud-amd64", "535.261.03", true),
        ("6.1.0-56-amd64", "580.119.02", true),
        ("6.1.0-56-amd64", "580.94.13", true),
        ("6.1.0-56-amd64", "580.94.16", false),
        ("6.1.0-56-amd64", "580.126.09", false),
        ("6.1.0-56-amd64", "590.44.01", true),
        ("6.1.0-56-amd64", "590.48.01", false),
    ] {
        let mut asked = constraints(kernel, version);
        asked.flavor = Some(Flavor::Open);
        let told = picked(&asked).warnings.join("\n");
        assert_eq!(
            told.contains("one more argument"),
            doubtful,
            "{kernel} {version}: {told}"
        );
    }
}

#[test]
fn running_and_next_kernel_affect_selection() {
    let constraints = with(&[A100], |constraints| {
        constraints.kernel = Some("6.1.0-44-amd64".parse().unwrap());
        constraints.next_kernel = Some("6.19.6-1-amd64".parse().unwrap());
        constraints.candidates =
            candidates(&["535.274.02", "550.163.01", "570.211.01", "580.65.06"]);
    });
    // The long-term branch is available, but too old for the next kernel. 570 has the fix.
    assert_eq!(
        picked(&constraints).version.unwrap().to_string(),
        "570.211.01"
    );
    let only_now = Constraints {
        next_kernel: None,
        ..constraints
    };
    assert_eq!(picked(&only_now).version.unwrap().to_string(), "580.65.06");
}

#[test]
fn the_version_comes_from_the_repository() {
    let debian = candidates(&["535.261.03", "535.247.01"]);
    let pick = picked(&with(&[A100], |constraints| {
        constraints.candidates = debian.clone()
    }));
    assert_eq!(pick.version.unwrap().to_string(), "535.261.03");
    assert_eq!(pick.flavor, Flavor::Proprietary);
    let refusal = refused(&with(&[B200], |constraints| {
        constraints.candidates = debian.clone()
    }));
    assert!(
        reasons(&refusal).contains("570.86.15"),
        "{}",
        reasons(&refusal)
    );
    assert!(
        refusal.nearest[0].contains("from another repository"),
        "{:?}",
        refusal.nearest
    );
    let refusal = refused(&with(&[A100], |constraints| {
        constraints.candidates = debian;
        constraints.version = Some("580.65.06".parse().unwrap());
    }));
    assert_eq!(refusal.reasons[0].rule, Rule::Offered);
    assert!(
        reasons(&refusal).contains("535.261.03"),
        "{}",
        reasons(&refusal)
    );
    let empty = refused(&with(&[A100], |constraints| {
        constraints.candidates = candidates(&[])
    }));
    assert!(reasons(&empty).contains("no driver"));
    let torn = refused(&with(&[A100], |constraints| {
        constraints.branch = Some("570".parse().unwrap());
        constraints.version = Some("580.65.06".parse().unwrap());
    }));
    assert_eq!(torn.reasons[0].rule, Rule::Constraints);
}

#[test]
fn unlisted_gpus() {
    let pick = picked(&gpus(&["10de:3fff"]));
    assert!(pick.assumed && pick.doubtful);
    assert_eq!(
        (pick.branch.to_string().as_str(), pick.flavor),
        ("595", Flavor::Open)
    );
    assert!(
        pick.reasons
            .iter()
            .any(|r| r.contains("verified after the module is loaded"))
    );
    // The proprietary modules are the default of branch 550, but the GPU is probably too new for them.
    let old = with(&["10de:3fff"], |constraints| {
        constraints.branch = Some("550".parse().unwrap());
    });
    assert_eq!(brief(&old), "550 open");
    let refusal = refused(&gpus(&["10de:0040"]));
    assert!(refusal.unknown, "{refusal:?}");
    // Kepler, by its id range.
    let pick = picked(&gpus(&["10de:0fff"]));
    assert!(pick.assumed && !pick.doubtful);
    assert_eq!(pick.branch.to_string(), "470");
    let titan = GpuIdentity {
        chip_name: "GV100 [TITAN V]".parse().ok(),
        ..gpu("10de:1d81")
    };
    let pick = picked(&Constraints {
        gpus: vec![titan.clone()],
        ..Constraints::default()
    });
    assert!(pick.assumed);
    assert_eq!(
        (pick.branch.to_string().as_str(), pick.flavor),
        ("580", Flavor::Proprietary)
    );
    let both = Constraints {
        gpus: vec![titan, gpu(B200)],
        ..Constraints::default()
    };
    assert_eq!(refused(&both).reasons[0].rule, Rule::Pair);
    // An unknown branch gives a warning if its version is known, otherwise an error because it has no row.
    let new = with(&[H100], |constraints| {
        constraints.version = Some("640.10.01".parse().unwrap())
    });
    assert!(picked(&new).doubtful && picked(&new).flavor == Flavor::Open);
    let new = with(&[H100], |constraints| {
        constraints.branch = Some("640".parse().unwrap())
    });
    assert!(refused(&new).unknown);
    let new = with(&[V100], |constraints| {
        constraints.version = Some("640.10.01".parse().unwrap())
    });
    assert_eq!(refused(&new).reasons[0].rule, Rule::LastBranch);
}

#[test]
fn gpu_slices_require_the_grid_driver() {
    let slice = GpuIdentity {
        subsystem_id: Some("10de:1733".parse().unwrap()),
        ..gpu("10de:27b8")
    };
    let refusal = refused(&Constraints {
        gpus: vec![slice],
        ..Constraints::default()
    });
    assert_eq!(refusal.reasons[0].rule, Rule::Vgpu);
    assert!(reasons(&refusal).contains("L4-3Q"), "{}", reasons(&refusal));
    assert!(refusal.nearest[0].contains("GRID guest driver"));
    let whole = GpuIdentity {
        subsystem_id: Some("10de:16ca".parse().unwrap()),
        ..gpu("10de:27b8")
    };
    assert_eq!(
        brief(&Constraints {
            gpus: vec![whole],
            ..Constraints::default()
        }),
        "580 open"
    );
    let azure = Some(("azure".to_owned(), "Standard_NV36ads_A10_v5".to_owned()));
    let refusal = refused(&with(&["10de:2236"], |constraints| {
        constraints.instance = azure
    }));
    assert_eq!(refusal.reasons[0].rule, Rule::Vgpu);
    let aws = Some(("aws".to_owned(), "p5.48xlarge".to_owned()));
    assert_eq!(
        brief(&with(&[H100], |constraints| constraints.instance = aws)),
        "580 open"
    );
}

#[test]
fn fabric_manager_requires_a_visible_switch() {
    let seen = |id: &str, pci, management| {
        let constraints = with(&[id], |constraints| {
            constraints.nvswitch = pci;
            constraints.nvlink_management = management;
        });
        picked(&constraints).fabric
    };
    assert_eq!(seen(H100, Some(true), None), Fabric::Fm);
    assert_eq!(seen(H100, None, None), Fabric::Fm);
    assert_eq!(seen(H100, Some(false), None), Fabric::None);
    // The NVSwitches are not on the PCI bus.
    assert_eq!(seen(B200, Some(false), None), Fabric::FmNvlsm);
    assert_eq!(seen(B200, Some(false), Some(true)), Fabric::FmNvlsm);
    assert_eq!(seen(B200, Some(false), Some(false)), Fabric::None);
    assert_eq!(seen(GB200, Some(false), Some(false)), Fabric::Imex);
    assert_eq!(seen(T4, Some(true), Some(true)), Fabric::None);
}

#[test]
fn board_gets_the_vendor_recommended_branch() {
    const RTX_PRO_4500: &str = "10de:2c3a";
    assert_eq!(brief(&gpus(&[RTX_PRO_4500])), "595 open");
    // 580 is selected if it is requested or the only one.
    let requested = picked(&with(&[RTX_PRO_4500], |constraints| {
        constraints.branch = Some("580".parse().unwrap());
    }));
    assert_eq!(requested.branch.to_string(), "580");
    let warnings = requested.warnings.join("\n");
    assert!(
        warnings.contains("595.58.03 or newer is recommended"),
        "{warnings}"
    );
    assert_eq!(brief(&gpus(&[B200])), "580 open");
}

#[test]
fn instance_types_failing_with_gsp_get_proprietary_modules() {
    const A10G: &str = "10de:2237";
    let of = |id: &str, instance: &str, branch: Option<u32>| {
        brief(&with(&[id], |constraints| {
            constraints.instance = Some(("aws".to_owned(), instance.to_owned()));
            constraints.branch = branch.map(|branch| branch.to_string().parse().unwrap());
        }))
    };
    assert_eq!(of(T4, "g4dn.xlarge", None), "580 proprietary");
    assert_eq!(of(A10G, "g5.48xlarge", None), "580 proprietary");
    // This branch has no other modules.
    assert_eq!(of(A10G, "g5.48xlarge", Some(615)), "615 open");
    assert_eq!(of("10de:27b8", "g6.xlarge", None), "580 open");
    assert_eq!(brief(&gpus(&[A10G])), "580 open");
    let pick = picked(&with(&[A10G], |constraints| {
        constraints.instance = Some(("aws".to_owned(), "g5.xlarge".to_owned()));
    }));
    let reasons = pick.reasons.join("\n");
    assert!(
        reasons.contains("failed with the GSP firmware"),
        "{reasons}"
    );
}

/// Reasons and warnings of a selection do not overlap.
#[test]
fn missing_cudnn_data_is_a_warning_only() {
    let pick = picked(&with(&[H100], |constraints| {
        constraints.cudnn = "9.28".parse().ok();
    }));
    let missing = |lines: &[String]| {
        lines
            .iter()
            .any(|line| line.contains("9.28 is not in the matrix"))
    };
    assert!(missing(&pick.warnings), "{pick:?}");
    assert!(!missing(&pick.reasons), "{pick:?}");
}

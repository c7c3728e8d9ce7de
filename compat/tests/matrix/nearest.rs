//! The nearest constraints with a compatible driver, which an incompatibility report suggests.

use gpu_compat::identity::Flavor;
use gpu_compat::pick::{Constraints, NoDriver, pick};

use crate::{gpu, matrix};

const V100: &str = "10de:1db1";
const H100: &str = "10de:2330";
const H200: &str = "10de:2335";
const B200: &str = "10de:2901";

/// Constraints without a compatible driver.
#[derive(Default)]
struct Asked {
    branch: &'static str,
    version: &'static str,
    flavor: Option<Flavor>,
    /// The only driver in the repository.
    offer: &'static str,
    cuda: &'static str,
    kernel: &'static str,
}

fn parsed<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> Option<T> {
    (!text.is_empty()).then(|| text.parse().unwrap())
}

fn refused(constraints: &Constraints) -> Box<NoDriver> {
    pick(matrix(), constraints).expect_err("no driver fits")
}

/// The relaxed constraints of the nearest selection, with its branch and modules.
fn nearest(id: &str, asked: Asked) -> String {
    let mut constraints = Constraints {
        gpus: vec![gpu(id)],
        branch: parsed(asked.branch),
        version: parsed(asked.version),
        candidates: parsed(asked.offer).map(|version| vec![version]),
        cuda: parsed(asked.cuda).into_iter().collect(),
        kernel: parsed(asked.kernel),
        flavor: asked.flavor,
        ..Constraints::default()
    };
    let found = refused(&constraints);
    // The kernel of the next boot counts like the running one.
    std::mem::swap(&mut constraints.kernel, &mut constraints.next_kernel);
    assert_eq!(
        refused(&constraints).nearest,
        found.nearest,
        "{constraints:?}"
    );
    let near = found
        .nearest_pick
        .as_ref()
        .expect("a driver for the GPU without other constraints");
    let (given_up, _) = (found.nearest[0].split_once(": ")).unwrap_or_else(|| panic!("{found:?}"));
    format!("{given_up}: {} {}", near.branch, near.flavor)
}

/// Exactly the constraints that prevent a selection are relaxed.
#[test]
fn nearest_selection_relaxes_a_minimal_set_of_constraints() {
    let proprietary = Some(Flavor::Proprietary);
    let old = "2.6.32";
    for (id, asked, expected) in rows! {
        H200, Asked { branch: "550", version: "550.54.14", ..Asked::default() },
            "with another version of the branch: 550 proprietary";
        H200, Asked { branch: "535", version: "535.261.03", ..Asked::default() },
            "with another branch: 580 open";
        B200, Asked { flavor: proprietary, ..Asked::default() },
            "with the other kernel modules: 580 open";
        B200,
            Asked { branch: "570", version: "570.133.20", flavor: proprietary, ..Asked::default() },
            "with the other kernel modules: 580 open";
        H200, Asked { offer: "535.261.03", ..Asked::default() }, "from another repository: 580 open";
        B200, Asked { flavor: proprietary, offer: "535.261.03", ..Asked::default() },
            "from another repository: 580 open";
        V100, Asked { cuda: "13.0", ..Asked::default() },
            "without the requested CUDA versions: 580 proprietary";
        V100, Asked { offer: "590.48.01", cuda: "13.0", ..Asked::default() },
            "without the requested CUDA versions: 580 proprietary";
        V100, Asked { flavor: Some(Flavor::Open), cuda: "13.0", ..Asked::default() },
            "without the requested CUDA versions: 580 proprietary";
        H100, Asked { kernel: old, ..Asked::default() }, "on another kernel: 580 open";
        H100, Asked { offer: "470.256.02", kernel: old, ..Asked::default() },
            "on another kernel: 580 open";
        B200, Asked { flavor: proprietary, kernel: old, ..Asked::default() },
            "on another kernel: 580 open";
        V100, Asked { cuda: "13.0", kernel: old, ..Asked::default() },
            "without the requested CUDA versions, on another kernel: 580 proprietary";
    } {
        assert_eq!(nearest(id, asked), expected, "{id}");
    }
}

//! What a refusal says about the nearest wish that a driver fits.

use gpu_bootstrap::compat::pick::{NoDriver, Wish, pick};
use gpu_bootstrap::model::gpu::Flavour;

use crate::{gpu, matrix};

const V100: &str = "10de:1db1";
const H100: &str = "10de:2330";
const H200: &str = "10de:2335";
const B200: &str = "10de:2901";

fn parsed<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> Option<T> {
    (!text.is_empty()).then(|| text.parse().unwrap())
}

fn refused(wish: &Wish) -> Box<NoDriver> {
    pick(matrix(), wish).expect_err("no driver fits")
}

/// No part of a wish is given up that need not be, and each that must be is.
#[test]
fn the_nearest_wish_gives_up_as_little_as_possible() {
    for (id, branch, version, flavour, candidate, cuda, kernel, want) in [
        (
            H200,
            "550",
            "550.54.14",
            "",
            "",
            "",
            "",
            "with another version of the branch: driver 550.",
        ),
        (
            H200,
            "535",
            "535.261.03",
            "",
            "",
            "",
            "",
            "with another branch: driver 580.",
        ),
        (
            B200,
            "",
            "",
            "proprietary",
            "",
            "",
            "",
            "with the other kernel modules: driver 580.",
        ),
        (
            B200,
            "570",
            "570.133.20",
            "proprietary",
            "",
            "",
            "",
            "with the other kernel modules: driver 580.",
        ),
        (
            H200,
            "",
            "",
            "",
            "535.261.03",
            "",
            "",
            "from another repository: driver 580.",
        ),
        (
            B200,
            "",
            "",
            "proprietary",
            "535.261.03",
            "",
            "",
            "from another repository: driver 580.",
        ),
        (
            V100,
            "",
            "",
            "",
            "",
            "13.0",
            "",
            "without the requested CUDA versions: driver 580.",
        ),
        (
            V100,
            "",
            "",
            "",
            "590.48.01",
            "13.0",
            "",
            "without the requested CUDA versions: driver 580.",
        ),
        (
            V100,
            "",
            "",
            "open",
            "",
            "13.0",
            "",
            "without the requested CUDA versions: driver 580.",
        ),
        (
            H100,
            "",
            "",
            "",
            "",
            "",
            "2.6.32",
            "on another kernel: driver 580.",
        ),
        (
            H100,
            "",
            "",
            "",
            "470.256.02",
            "",
            "2.6.32",
            "on another kernel: driver 580.",
        ),
        (
            B200,
            "",
            "",
            "proprietary",
            "",
            "",
            "2.6.32",
            "on another kernel: driver 580.",
        ),
        (
            V100,
            "",
            "",
            "",
            "",
            "13.0",
            "2.6.32",
            "without the requested CUDA versions, on another kernel: driver 580.",
        ),
    ] {
        let mut wish = Wish {
            gpus: vec![gpu(id)],
            branch: parsed(branch),
            version: parsed(version),
            candidates: parsed(candidate).map(|version| vec![version]),
            cuda: parsed(cuda).into_iter().collect(),
            kernel: parsed(kernel),
            flavour: match flavour {
                "open" => Some(Flavour::Open),
                "proprietary" => Some(Flavour::Proprietary),
                _ => None,
            },
            ..Wish::default()
        };
        let found = refused(&wish);
        assert!(
            found.nearest[0].starts_with(want),
            "{want} {wish:?}: {found:?}"
        );
        let modules = match id {
            V100 => "proprietary kernel modules",
            _ => "open kernel modules",
        };
        if branch != "550" {
            assert!(found.nearest[0].ends_with(modules), "{want}: {found:?}");
        }
        // The kernel of the next boot counts as the running one does.
        std::mem::swap(&mut wish.kernel, &mut wish.next_kernel);
        assert_eq!(refused(&wish).nearest, found.nearest, "{want}");
    }
}

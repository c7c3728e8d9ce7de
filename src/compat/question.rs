//! Questions and answers of the `compat` command: whether GPU, CUDA, driver and kernel fit each
//! other, and which driver would fit.

use std::collections::BTreeSet;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::compat::attempt;
use crate::compat::gpu::{Knowledge, NameError};
use crate::compat::matrix::{InstanceDriver, Matrix};
use crate::compat::pick::{Wish, pick};
use crate::compat::rules;
use crate::compat::ruling::{self, Judgement, Offer, Rule, Ruling};
use crate::model::gpu::{Flavour, GpuIdentity, SupportedFlavours};
use crate::model::pci::PciId;
use crate::model::version::{Branch, CudaVersion, DriverVersion, KernelVersion, VersionError};

/// The schema version of the answer.
pub const SCHEMA: u32 = 1;

/// A question. Every field is optional, but one of them must be set.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Question {
    /// A GPU's name or PCI id.
    pub gpu: Option<String>,
    /// The CUDA version that containers bring.
    pub cuda: Option<CudaVersion>,
    /// A driver.
    pub driver: Option<DriverOrBranch>,
    /// The kernel.
    pub kernel: Option<KernelVersion>,
    /// The operating system, such as `debian-12`. No rule reads it.
    pub os: Option<String>,
}

/// A driver version or a whole branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DriverOrBranch {
    /// One version.
    Version(DriverVersion),
    /// The newest known version of a branch.
    Branch(Branch),
}

impl FromStr for DriverOrBranch {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            Ok(branch) => Ok(Self::Branch(branch)),
            Err(_) => text.parse().map(Self::Version),
        }
    }
}

/// A question that cannot be answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuestionError {
    /// Nothing was asked.
    #[error("answer an empty question: name a GPU, a CUDA version, a driver or a kernel")]
    Empty,
    /// The name of the GPU has no meaning or several.
    #[error("find the GPU")]
    Gpu(#[source] NameError),
}

/// The short form of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Compatibility {
    /// No rule refuses.
    Compatible,
    /// A rule refuses.
    Incompatible,
    /// It works with a `cuda-compat` package in the container.
    NeedsForwardCompat,
    /// A row is missing, or there is evidence against it.
    Unknown,
}

/// The answer, in the form of the command's JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Answer {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The short form.
    pub verdict: Compatibility,
    /// Why: the values compared.
    pub why: Vec<String>,
    /// Which drivers serve what was asked.
    pub driver: DriverAnswer,
    /// `open`, `proprietary` or `either`; `null` where no GPU was asked about.
    pub module_flavour: Option<SupportedFlavours>,
    /// Where the rows that decided were read.
    #[serde(rename = "sources")]
    pub citations: Vec<String>,
}

impl Answer {
    /// Whether the command exits with 0.
    pub fn is_compatible(&self) -> bool {
        self.verdict == Compatibility::Compatible
    }
}

/// The drivers that serve what was asked, apart from the driver that was asked about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct DriverAnswer {
    /// The oldest driver; `null` where no row has it.
    pub min: Option<DriverVersion>,
    /// The last branch; `null` where no branch is the last one.
    pub max_branch: Option<Branch>,
    /// The one to install; `null` where none fits.
    pub recommended: Option<DriverVersion>,
}

/// Answers a question.
///
/// # Errors
/// When the question is empty, or no GPU or several different ones have the name.
pub fn answer(matrix: &Matrix, question: &Question) -> Result<Answer, QuestionError> {
    let Question {
        gpu,
        cuda,
        driver,
        kernel,
        ..
    } = question;
    if gpu.is_none() && cuda.is_none() && driver.is_none() && kernel.is_none() {
        return Err(QuestionError::Empty);
    }
    let gpu = gpu
        .as_deref()
        .map(|name| find_gpu(matrix, name))
        .transpose()?;
    let wish = Wish {
        gpus: gpu.into_iter().collect(),
        kernel: kernel.clone(),
        cuda: cuda.iter().copied().collect(),
        ..Wish::default()
    };
    let needs = wish.needs(matrix);
    let best = pick(matrix, &wish);

    let mut why = Vec::new();
    let mut citations: BTreeSet<String> = BTreeSet::new();
    let verdict = if let Some(driver) = driver {
        let judged = judge(matrix, &needs, driver);
        why.extend(judged.rulings.iter().map(|ruling| ruling.text.clone()));
        citations.extend(
            judged
                .rulings
                .iter()
                .flat_map(|ruling| ruling.citations.iter().cloned()),
        );
        if judged.verdict == Compatibility::Compatible && why.is_empty() {
            why.push(judged.fits);
        }
        judged.verdict
    } else {
        match &best {
            Ok(pick) => {
                why.extend(pick.reasons.iter().chain(&pick.warnings).cloned());
                citations.extend(pick.citations.iter().cloned());
                if pick.doubtful {
                    Compatibility::Unknown
                } else {
                    Compatibility::Compatible
                }
            }
            Err(no_driver) => {
                why.extend(no_driver.reasons.iter().map(|reason| reason.text.clone()));
                why.extend(
                    no_driver
                        .nearest
                        .iter()
                        .map(|near| format!("would work {near}")),
                );
                citations.extend(
                    no_driver
                        .reasons
                        .iter()
                        .flat_map(|r| r.citations.iter().cloned()),
                );
                if no_driver.unknown {
                    Compatibility::Unknown
                } else {
                    Compatibility::Incompatible
                }
            }
        }
    };
    for board in &needs.boards {
        citations.extend(board.citations.iter().map(|key| (*key).to_owned()));
        let instances = matrix.instance_types.iter().filter(|row| {
            row.driver == InstanceDriver::Grid
                && board
                    .row
                    .is_some_and(|gpu| row.gpu_ids.contains(&gpu.pci_id))
        });
        let names: Vec<&str> = instances.map(|row| row.name.as_str()).collect();
        if !names.is_empty() {
            why.push(format!(
                "as vGPU it needs the GRID guest driver, as on {}",
                names.join(", ")
            ));
        }
    }
    Ok(Answer {
        schema: SCHEMA,
        verdict,
        why,
        driver: DriverAnswer {
            min: oldest_driver(matrix, &needs),
            max_branch: needs
                .boards
                .iter()
                .filter_map(|board| board.last_branch())
                .min(),
            recommended: best.ok().map(|pick| pick.recommended),
        },
        module_flavour: needs
            .boards
            .first()
            .filter(|board| board.architecture.is_some())
            .map(|board| board.modules),
        citations: cite(matrix, &citations),
    })
}

fn find_gpu(matrix: &Matrix, name: &str) -> Result<GpuIdentity, QuestionError> {
    let pci_id = match name.parse::<PciId>() {
        Ok(id) => id,
        Err(_) => {
            let row = matrix.gpu_by_name(name).map_err(QuestionError::Gpu)?;
            return Ok(GpuIdentity {
                pci_id: row.pci_id,
                subsystem_id: row.subsystem_id,
                chip_name: None,
            });
        }
    };
    Ok(GpuIdentity {
        pci_id,
        subsystem_id: None,
        chip_name: None,
    })
}

/// What the rules say about the driver that was asked about.
struct DriverVerdict {
    verdict: Compatibility,
    rulings: Vec<Ruling>,
    fits: String,
}

fn judge(matrix: &Matrix, needs: &rules::Needs<'_>, driver: &DriverOrBranch) -> DriverVerdict {
    let version = match driver {
        DriverOrBranch::Version(version) => version.clone(),
        DriverOrBranch::Branch(branch) => match matrix.branch(*branch) {
            Some(row) => row.newest_version.clone(),
            None => {
                let none: [&str; 0] = [];
                let text = format!("the matrix has no row for branch {branch}");
                let ruling = ruling::say(Rule::UnknownBranch, Judgement::Unknown, text, &none);
                let verdict = Compatibility::Unknown;
                return DriverVerdict {
                    verdict,
                    rulings: vec![ruling],
                    fits: String::new(),
                };
            }
        },
    };
    // The question names no flavour, so the better one counts; if both are equal, the branch's
    // default.
    let preferred = attempt::preferred_flavour(matrix, needs, version.branch());
    let other = match preferred {
        Flavour::Open => Flavour::Proprietary,
        Flavour::Proprietary => Flavour::Open,
    };
    let of = |flavour| {
        rules::judge(
            matrix,
            needs,
            &Offer {
                version: version.clone(),
                flavour,
            },
        )
    };
    let weight = |rulings: &[Ruling]| {
        let refused = rulings
            .iter()
            .filter(|r| r.judgement == Judgement::Refuse)
            .count();
        (
            refused,
            rulings
                .iter()
                .filter(|r| r.judgement >= Judgement::Unknown)
                .count(),
        )
    };
    let (first, second) = (of(preferred), of(other));
    let (flavour, rulings) = if weight(&second) < weight(&first) {
        (other, second)
    } else {
        (preferred, first)
    };

    let refused: Vec<&Ruling> = rulings
        .iter()
        .filter(|r| r.judgement == Judgement::Refuse)
        .collect();
    let unsure = rulings.iter().any(|r| r.judgement >= Judgement::Unknown);
    let nothing_known = needs
        .boards
        .iter()
        .any(|b| b.knowledge == Knowledge::Nothing);
    let verdict = if refused.is_empty() {
        if unsure {
            Compatibility::Unknown
        } else {
            Compatibility::Compatible
        }
    } else if refused
        .iter()
        .all(|ruling| ruling.rule == Rule::ForwardCompat)
    {
        Compatibility::NeedsForwardCompat
    } else if nothing_known && refused.iter().all(|ruling| ruling.rule == Rule::UnknownGpu) {
        Compatibility::Unknown
    } else {
        Compatibility::Incompatible
    };
    let mut rulings = rulings;
    rulings.sort_by_key(|ruling| std::cmp::Reverse(ruling.judgement));
    let fits = format!("driver {version} with {flavour} kernel modules: no rule excludes it");
    DriverVerdict {
        verdict,
        rulings,
        fits,
    }
}

/// The oldest driver that the GPU and the CUDA version allow.
fn oldest_driver(matrix: &Matrix, needs: &rules::Needs<'_>) -> Option<DriverVersion> {
    let boards = needs.boards.iter().filter_map(|board| board.min_driver());
    let cuda = needs
        .cuda
        .iter()
        .filter_map(|cuda| rules::cuda_minimum(matrix, *cuda).0);
    boards.chain(cuda).max().cloned()
}

/// Citations as people can look them up.
fn cite(matrix: &Matrix, keys: &BTreeSet<String>) -> Vec<String> {
    matrix
        .citations
        .iter()
        .filter(|row| keys.contains(&row.key))
        .map(|row| format!("{} ({}, {})", row.title, row.r#where, row.date))
        .collect()
}

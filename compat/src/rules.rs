//! The rules of the matrix. Each rule is a pure function of one driver version and flavor.
//!
//! Only data of the matrix rejects a driver. A missing entry usually leads to [`Evaluation::Unknown`] or to no result.

use crate::board::Board;
use crate::cudnn;
use crate::identity::{Architecture, Flavor, SupportedFlavors};
use crate::kernel;
use crate::matrix::{BranchRow, InstanceFlavor, Matrix, OpenModules, Support, Toolkit};
use crate::rule_result::{Candidate, Evaluation, Rule, RuleResult, say};
use crate::security;
use crate::version::{Branch, CudaVersion, CudnnVersion, DriverVersion, KernelVersion};

/// The requirements for a driver.
#[derive(Debug, Clone)]
pub struct Needs<'m> {
    /// The GPUs, each model once.
    pub boards: Vec<Board<'m>>,
    /// The kernels that need its modules.
    pub kernels: Vec<KernelVersion>,
    /// The architecture, as printed by `uname -m`.
    pub arch: Option<String>,
    /// The CUDA versions of containers.
    pub cuda: Vec<CudaVersion>,
    /// The cuDNN version of containers.
    pub cudnn: Option<CudnnVersion>,
    /// The entry with the preferred module flavor on the instance type.
    pub flavor: Option<&'m InstanceFlavor>,
}

/// Returns all rule results for a candidate.
pub fn evaluate(matrix: &Matrix, needs: &Needs<'_>, offer: &Candidate) -> Vec<RuleResult> {
    let mut said = Vec::new();
    branch(matrix, offer, &mut said);
    if let Some(lacking) = security::of_driver(matrix, &offer.version) {
        said.push(say(
            Rule::Security,
            Evaluation::Caution,
            lacking.why,
            &lacking.citations,
        ));
    }
    for board in &needs.boards {
        board_driver(matrix, board, offer, &mut said);
        board_flavor(board, offer.flavor, &mut said);
    }
    let none: [&str; 0] = [];
    for cuda in &needs.cuda {
        if let Some(text) = matrix.unreleased_cuda(*cuda) {
            said.push(say(Rule::CudaDriver, Evaluation::Refuse, text, &none));
            continue;
        }
        cuda_driver(matrix, *cuda, offer, &needs.boards, &mut said);
        cuda_architecture(matrix, *cuda, &needs.boards, &mut said);
    }
    if let Some(asked) = needs.cudnn {
        let of_driver = |rule| matches!(rule, Rule::CudaDriver | Rule::ForwardCompat);
        let is_refused = (said.iter()).any(|rule_result| {
            of_driver(rule_result.rule) && rule_result.evaluation == Evaluation::Refuse
        });
        let driver = Some(&offer.version).filter(|_| !is_refused);
        cudnn::evaluate(matrix, asked, &needs.cuda, &needs.boards, driver, &mut said);
    }
    for release in &needs.kernels {
        kernel::evaluate(matrix, release, needs.arch.as_deref(), offer, &mut said);
    }
    said
}

/// Returns `true` if no rule rejects the candidate.
pub fn passes(rule_results: &[RuleResult]) -> bool {
    rule_results
        .iter()
        .all(|rule_result| rule_result.evaluation != Evaluation::Refuse)
}

/// Returns the toolkits of a CUDA version: one toolkit if the version has an update number, otherwise all of the minor version.
pub fn toolkits(matrix: &Matrix, cuda: CudaVersion) -> impl Iterator<Item = &Toolkit> {
    matrix.toolkits.iter().filter(move |row| {
        row.version == cuda
            || row.version.minor_version() == cuda.minor_version()
                && (cuda.patch.is_none() || row.version.patch.is_none() && cuda.patch == Some(0))
    })
}

/// Returns the first driver that supports a CUDA version, and the first one that supports all its features.
pub fn cuda_minimum(
    matrix: &Matrix,
    cuda: CudaVersion,
) -> (Option<&DriverVersion>, Option<&DriverVersion>) {
    let full = toolkits(matrix, cuda)
        .filter_map(|row| row.min_driver.as_ref())
        .min();
    let major = matrix
        .cuda_majors
        .iter()
        .find(|row| row.major == cuda.major);
    let within_major = major.and_then(|row| row.minor_version_min_driver.as_ref());
    (within_major.or(full), full)
}

/// Returns the module flavors of a branch. A branch without an entry is assumed to be like its neighbor.
pub fn branch_flavors(matrix: &Matrix, branch: Branch) -> (OpenModules, bool) {
    if let Some(row) = matrix.branch(branch) {
        return (row.open, row.proprietary);
    }
    let (older, newer) = neighbours(matrix, branch);
    match (older, newer) {
        (Some(older), _) => (older.open, older.proprietary),
        (None, Some(newer)) => (newer.open, newer.proprietary),
        (None, None) => (OpenModules::Default, true),
    }
}

/// Returns the entries of the nearest older and the nearest newer branch.
pub(super) fn neighbours(
    matrix: &Matrix,
    branch: Branch,
) -> (Option<&BranchRow>, Option<&BranchRow>) {
    let rows = || matrix.branches.iter();
    let older = rows().filter(|row| row.branch < branch);
    let newer = rows().filter(|row| row.branch > branch);
    (
        older.max_by_key(|row| row.branch),
        newer.min_by_key(|row| row.branch),
    )
}

/// Whether a branch supports an architecture without a known first driver.
enum Drives {
    /// The branch is newer than the architecture.
    Likely,
    /// The newest architecture of the branch is older.
    No(Architecture),
    /// No entry covers it.
    Unknown,
}

fn drives(matrix: &Matrix, branch: Branch, architecture: &Architecture) -> Drives {
    let wanted = matrix.generation(architecture);
    let newest = |row: &BranchRow| matrix.generation(&row.newest_architecture);
    let (at_least, at_most) = match matrix.branch(branch) {
        Some(row) => (Some(row), Some(row)),
        None => neighbours(matrix, branch),
    };
    if let Some(row) = at_most.filter(|row| wanted > newest(row)) {
        return Drives::No(row.newest_architecture.clone());
    }
    // During the lifetime of a branch, new boards of the branch's newest architecture may appear, so their support is
    // unknown.
    match at_least {
        Some(row) if wanted < newest(row) => Drives::Likely,
        _ => Drives::Unknown,
    }
}

fn branch(matrix: &Matrix, offer: &Candidate, said: &mut Vec<RuleResult>) {
    let branch = offer.version.branch();
    let none: [&str; 0] = [];
    if let Some(text) = matrix.unreleased_branch(branch) {
        let citations = (matrix.branch_list.iter()).flat_map(|row| row.citations.clone());
        let citations: Vec<String> = citations.collect();
        said.push(say(
            Rule::UnknownBranch,
            Evaluation::Refuse,
            text,
            &citations,
        ));
        return;
    }
    let Some(row) = matrix.branch(branch) else {
        // A branch with a newer neighbor follows the rules of its neighbors. The requirements of a branch that is newer than
        // all entries are unknown.
        let (older, newer) = neighbours(matrix, branch);
        let rows: Vec<&BranchRow> = older.into_iter().chain(newer).collect();
        let (evaluation, bounds, citations) = match newer {
            Some(_) => {
                let names: Vec<String> = rows.iter().map(|row| row.branch.to_string()).collect();
                let bounds = format!("; the rules of branches {} are used", names.join(" and "));
                let cited = rows.iter().flat_map(|row| row.citations.clone());
                (Evaluation::Caution, bounds, cited.collect())
            }
            None => (Evaluation::Unknown, String::new(), Vec::new()),
        };
        let text = format!("branch {branch} is not in the matrix{bounds}");
        said.push(say(Rule::UnknownBranch, evaluation, text, &citations));
        let missing = match branch_flavors(matrix, branch) {
            (OpenModules::None, _) => offer.flavor == Flavor::Open,
            (_, false) => offer.flavor == Flavor::Proprietary,
            _ => false,
        };
        if missing {
            let text = format!("branches next to {branch} have no {} modules", offer.flavor);
            said.push(say(Rule::BranchFlavor, Evaluation::Against, text, &none));
        }
        return;
    };
    let missing = match offer.flavor {
        Flavor::Open => row.open == OpenModules::None,
        Flavor::Proprietary => !row.proprietary,
    };
    if missing {
        let text = format!("branch {branch} has no {} kernel modules", offer.flavor);
        said.push(say(
            Rule::BranchFlavor,
            Evaluation::Refuse,
            text,
            &row.citations,
        ));
    }
    let end = row.end_of_life.as_deref();
    match row.support {
        Support::Supported => {}
        Support::Ended => {
            let when = end.map_or(String::new(), |end| format!(" ({end})"));
            let text = format!("branch {branch} is end-of-life{when}");
            said.push(say(
                Rule::Support,
                Evaluation::Caution,
                text,
                &row.citations,
            ));
        }
        Support::Unknown => {
            let text = format!("the support status of branch {branch} is unknown");
            said.push(say(
                Rule::Support,
                Evaluation::Caution,
                text,
                &row.citations,
            ));
        }
    }
}

fn board_driver(matrix: &Matrix, board: &Board<'_>, offer: &Candidate, said: &mut Vec<RuleResult>) {
    let (version, label) = (&offer.version, &board.label);
    let branch = version.branch();
    let mut add = |rule, evaluation, text| said.push(say(rule, evaluation, text, &board.citations));

    if let Some(profile) = board.vgpu {
        let text = format!(
            "{label} is a vGPU: profile {} requires the licensed GRID guest driver of the hypervisor's vGPU release",
            profile.name
        );
        add(Rule::Vgpu, Evaluation::Refuse, text);
    }
    // If the branch is newer than the board's last branch, the board's first driver does not matter.
    let outlived = board.last_branch().is_some_and(|last| branch > last);
    match (board.architecture, board.assumed_newer) {
        _ if board.row.is_some() || outlived => {}
        (Some(row), _) => {
            // A branch that is newer than the architecture supports its boards from the first version of the branch on.
            let (evaluation, but) = if let Drives::Likely = drives(matrix, branch, &row.name) {
                let but = format!("; branch {branch} is newer than {}", row.title);
                (Evaluation::Caution, but)
            } else {
                (Evaluation::Unknown, String::new())
            };
            let text = format!("{label} is not in the matrix, so its first driver is unknown{but}");
            add(Rule::UnknownGpu, evaluation, text);
        }
        (None, true) => {
            let text = format!("{label} is not in the matrix, so its first driver is unknown");
            add(Rule::UnknownGpu, Evaluation::Unknown, text);
        }
        (None, false) => {
            let text = format!(
                "{label} is not in the matrix, and is older than the first GPU that supports the open modules; its chip name \
                 in `pci.ids` would determine the architecture"
            );
            add(Rule::UnknownGpu, Evaluation::Refuse, text);
        }
    }
    if let Some(last) = board.last_branch()
        && branch > last
    {
        let title = board.architecture.map_or("", |row| row.title.as_str());
        let text = format!("{label} is {title}, whose last branch is {last}; {branch} is newer");
        add(Rule::LastBranch, Evaluation::Refuse, text);
    }

    let listed = board.row.map_or(&[][..], |row| &row.min_drivers);
    let in_branch = listed.iter().find(|first| first.branch() == branch);
    let lowest = board.min_driver();
    if let Some(first) = in_branch.or(lowest).filter(|first| version < *first) {
        let text = format!("{label} needs driver {first} or newer; {version} is older");
        add(Rule::MinDriver, Evaluation::Refuse, text);
        return;
    }
    if lowest.is_none()
        && let Some(architecture) = board.architecture
        && let Drives::No(newest) = drives(matrix, branch, &architecture.name)
    {
        let text = format!(
            "{label} is {}; the newest architecture of branch {branch} is {newest}",
            architecture.title
        );
        add(Rule::NewestArchitecture, Evaluation::Refuse, text);
        return;
    }
    let Some(row) = board.row else { return };
    if row.not_named_in.contains(&branch) {
        let text = format!("no version of branch {branch} is known to support {label}");
        add(Rule::Listed, Evaluation::Against, text);
    }
    if let Some(since) = row.named_since.as_ref().filter(|since| version < *since) {
        let text = format!(
            "{since} is the first driver that is known to support {label}; {version} is older"
        );
        add(Rule::Listed, Evaluation::Against, text);
    }
    if let Some(advised) = row
        .advised_driver
        .as_ref()
        .filter(|advised| version < *advised)
    {
        let text = format!("{advised} or newer is recommended for {label}; {version} is older");
        add(Rule::AdvisedDriver, Evaluation::Caution, text);
    }
}

fn board_flavor(board: &Board<'_>, flavor: Flavor, said: &mut Vec<RuleResult>) {
    let label = &board.label;
    let text = match (board.modules, flavor) {
        (SupportedFlavors::Proprietary, Flavor::Open) => {
            format!("{label} has no GSP and supports only the proprietary kernel modules")
        }
        (SupportedFlavors::Open, Flavor::Proprietary) => {
            format!("{label} supports only the open kernel modules")
        }
        (SupportedFlavors::Either, Flavor::Proprietary) if board.assumed_newer => {
            let text =
                format!("{label} is not in the matrix; newer GPUs support only the open modules");
            said.push(say(
                Rule::BoardFlavor,
                Evaluation::Against,
                text,
                &board.citations,
            ));
            return;
        }
        _ => return,
    };
    said.push(say(
        Rule::BoardFlavor,
        Evaluation::Refuse,
        text,
        &board.citations,
    ));
}

fn cuda_driver(
    matrix: &Matrix,
    cuda: CudaVersion,
    offer: &Candidate,
    boards: &[Board<'_>],
    said: &mut Vec<RuleResult>,
) {
    let version = &offer.version;
    let (needed, full) = cuda_minimum(matrix, cuda);
    let citations: Vec<String> = toolkits(matrix, cuda)
        .flat_map(|row| row.citations.clone())
        .chain(
            matrix
                .cuda_majors
                .iter()
                .filter(|row| row.major == cuda.major)
                .flat_map(|row| row.citations.clone()),
        )
        .collect();
    if let Some(needed) = needed.filter(|needed| version < *needed) {
        let forward = forward_compat(matrix, cuda, version.branch(), boards);
        let (rule, hint) = match &forward {
            Some(package) => (
                Rule::ForwardCompat,
                format!("; on data center GPUs, the package {package} adds support"),
            ),
            None => (Rule::CudaDriver, String::new()),
        };
        let text = format!("CUDA {cuda} needs driver {needed} or newer; {version} is older{hint}");
        said.push(say(rule, Evaluation::Refuse, text, &citations));
        return;
    }
    match full {
        Some(full) if version < full => {
            let text = format!(
                "CUDA {cuda} runs on {version} by minor-version compatibility: features that need {full} are missing, and \
                 code that contains only PTX of CUDA {cuda} does not run; images with \
                 `NVIDIA_REQUIRE_CUDA=cuda>={cuda}`, such as NVIDIA's, start only on data center boards, or with \
                 `NVIDIA_DISABLE_REQUIRE=1`"
            );
            said.push(say(Rule::CudaDriver, Evaluation::Caution, text, &citations));
        }
        Some(_) => {}
        None => {
            let reported = matrix.branch(version.branch()).map(|row| row.max_cuda);
            if reported.is_none_or(|max| cuda.minor_version() > max) {
                let text = format!("the driver that CUDA {cuda} requires is unknown");
                said.push(say(Rule::CudaDriver, Evaluation::Unknown, text, &citations));
            }
        }
    }
}

/// Returns the package that adds a CUDA version to an older branch, if an entry contains this pair and no board is excluded.
fn forward_compat(
    matrix: &Matrix,
    cuda: CudaVersion,
    branch: Branch,
    boards: &[Board<'_>],
) -> Option<String> {
    let excluded = |board: &Board<'_>| {
        let mut brands = matrix.forward_compat_policy.excluded.iter();
        brands.any(|brand| board.label.to_lowercase().contains(&brand.to_lowercase()))
    };
    let wanted = cuda.minor_version();
    let has = matrix
        .forward_compat
        .iter()
        .any(|row| row.cuda.minor_version() == wanted && row.branches.contains(&branch));
    (has && !boards.iter().any(excluded))
        .then(|| format!("cuda-compat-{}-{}", wanted.major, wanted.minor))
}

fn cuda_architecture(
    matrix: &Matrix,
    cuda: CudaVersion,
    boards: &[Board<'_>],
    said: &mut Vec<RuleResult>,
) {
    for board in boards.iter().filter(|board| !board.capabilities.is_empty()) {
        let citations: Vec<&str> = board
            .capabilities
            .iter()
            .flat_map(|row| &row.citations)
            .map(String::as_str)
            .collect();
        let title = board.architecture.map_or("", |row| row.title.as_str());
        let wanted = cuda.minor_version();
        // If several capabilities are possible, only a common limit counts.
        let lasts: Option<Vec<CudaVersion>> =
            board.capabilities.iter().map(|row| row.last_cuda).collect();
        let last = lasts.and_then(|lasts| lasts.into_iter().max());
        if let Some(last) = last.filter(|last| wanted > last.minor_version()) {
            let text = format!(
                "CUDA {cuda} has no code for {} ({title}): its last toolkit is {last}",
                board.label
            );
            said.push(say(
                Rule::CudaArchitecture,
                Evaluation::Refuse,
                text,
                &citations,
            ));
        }
        if let Some((evaluation, why)) = first_code(matrix, wanted, board) {
            let text = format!("CUDA {cuda} has no code for {} ({title}){why}", board.label);
            said.push(say(Rule::CudaArchitecture, evaluation, text, &citations));
        }
    }
}

/// Evaluates a toolkit that is older than a board. Code for a lower capability with the same major number runs on the board, for
/// example code for 8.0 on 8.6.
fn first_code(
    matrix: &Matrix,
    wanted: CudaVersion,
    board: &Board<'_>,
) -> Option<(Evaluation, String)> {
    let first = board.capabilities.iter().map(|row| row.first_cuda).min()?;
    let first = first.minor_version();
    if wanted >= first {
        return None;
    }
    let relative = board.capability.and_then(|own| {
        let rows =
            (matrix.capabilities.iter()).filter(|row| wanted >= row.first_cuda.minor_version());
        let lower = rows
            .flat_map(|row| &row.versions)
            .filter(|other| other.major == own.major && other.minor < own.minor);
        // Code for a Tegra capability, which no GPU of the matrix has, does not run on a card.
        let of_card = |version| {
            matrix
                .gpus
                .iter()
                .any(|gpu| gpu.compute_capability == version)
        };
        lower.filter(|other| of_card(**other)).max()
    });
    Some(match relative {
        Some(other) => (
            Evaluation::Caution,
            format!(
                ", whose first toolkit is {first}; code for compute capability {other} runs, without the features of the \
                 newer one"
            ),
        ),
        None => (
            Evaluation::Against,
            format!(
                ", whose first toolkit is {first}: only programs with PTX run, and are compiled when they start"
            ),
        ),
    })
}

/// Returns the results for CUDA versions without code for a board.
pub(super) fn without_code(matrix: &Matrix, needs: &Needs<'_>) -> Vec<RuleResult> {
    let mut said = Vec::new();
    for cuda in &needs.cuda {
        cuda_architecture(matrix, *cuda, &needs.boards, &mut said);
    }
    said.retain(|rule_result| rule_result.evaluation >= Evaluation::Against);
    said
}

//! The driver, CUDA version and GPU that a cuDNN version requires, from NVIDIA's support matrices. A version has packages for
//! several CUDA major versions, and a container contains the packages for one of them.

use crate::board::Board;
use crate::matrix::{Confidence, Cudnn, Matrix};
use crate::rule_result::{Evaluation, Rule, RuleResult, say};
use crate::version::{CudaVersion, CudnnVersion, DriverVersion};

/// Returns the entries of a version, or of the nearest older version with the same major number.
fn rows(matrix: &Matrix, asked: CudnnVersion) -> Vec<&Cudnn> {
    let is_older =
        |row: &&Cudnn| row.version.major == asked.major && row.version.minor <= asked.minor;
    let older: Vec<&Cudnn> = matrix.cudnn.iter().filter(is_older).collect();
    let nearest = older.iter().map(|row| row.version).max();
    let of_nearest = |row: &&Cudnn| Some(row.version) == nearest;
    older.into_iter().filter(of_nearest).collect()
}

/// Returns the entries for the requested CUDA versions, or all entries.
fn rows_for<'m>(
    matrix: &'m Matrix,
    asked: CudnnVersion,
    cuda: &[CudaVersion],
) -> impl Iterator<Item = &'m Cudnn> {
    let all = rows(matrix, asked).into_iter();
    all.filter(move |row| cuda.is_empty() || cuda.iter().any(|one| one.major == row.cuda_major))
}

/// Returns the minimum driver version of a cuDNN version: the lowest one among its packages for the requested CUDA versions.
pub fn min_driver<'m>(
    matrix: &'m Matrix,
    asked: CudnnVersion,
    cuda: &[CudaVersion],
) -> Option<&'m DriverVersion> {
    let rows = rows_for(matrix, asked, cuda);
    rows.map(|row| &row.min_driver).min()
}

/// Adds the rule results for a version. `driver` is `None` if it is too old for the CUDA version, because another rule reports
/// that.
pub(super) fn evaluate(
    matrix: &Matrix,
    asked: CudnnVersion,
    cuda: &[CudaVersion],
    boards: &[Board<'_>],
    driver: Option<&DriverVersion>,
    said: &mut Vec<RuleResult>,
) {
    let none: [&str; 0] = [];
    let all = rows(matrix, asked);
    let Some(own) = all.first().map(|row| row.version) else {
        let text = format!("the requirements of cuDNN {asked} are unknown");
        said.push(say(Rule::Cudnn, Evaluation::Unknown, text, &none));
        return;
    };
    if own != asked {
        let newer = |row: &Cudnn| row.version.major == asked.major && row.version > asked;
        let evaluation = match matrix.cudnn.iter().any(newer) {
            true => Evaluation::Caution,
            false => Evaluation::Unknown,
        };
        let text = format!("cuDNN {asked} is not in the matrix: the data of {own} is used");
        said.push(say(Rule::Cudnn, evaluation, text, &none));
    }
    // Only verified data of exactly this version rejects a driver.
    let refuse = |row: &Cudnn| match row.confidence == Confidence::Verified && own == asked {
        true => Evaluation::Refuse,
        false => Evaluation::Against,
    };
    // If data of an older version is used, the requested version may support GPUs that the older version does not support.
    let newer = match own == asked {
        true => Evaluation::Against,
        false => Evaluation::Unknown,
    };
    let evaluated: Vec<(&Cudnn, Vec<RuleResult>)> = rows_for(matrix, asked, cuda)
        .map(|row| {
            (
                row,
                against(matrix, row, (refuse(row), newer), cuda, boards, driver),
            )
        })
        .collect();
    let worst = |rule_results: &[RuleResult]| {
        rule_results
            .iter()
            .map(|rule_result| rule_result.evaluation)
            .max()
    };
    let Some(best) = evaluated
        .iter()
        .map(|(_, rule_results)| worst(rule_results))
        .min()
    else {
        let majors: Vec<String> = all.iter().map(|row| row.cuda_major.to_string()).collect();
        let wanted: Vec<String> = cuda.iter().map(ToString::to_string).collect();
        let text = format!(
            "cuDNN {own} has packages for CUDA {}, but not for {}",
            majors.join(" and "),
            wanted.join(" and ")
        );
        let evaluation = all.iter().map(|row| refuse(row)).max();
        let evaluation = evaluation.unwrap_or(Evaluation::Against);
        said.push(say(Rule::Cudnn, evaluation, text, &all[0].citations));
        return;
    };
    for (row, rule_results) in evaluated {
        let serves = worst(&rule_results) == best;
        if serves && best < Some(Evaluation::Refuse) {
            let text = needs(row, driver);
            said.push(say(Rule::Cudnn, Evaluation::Note, text, &row.citations));
        }
        // If the packages of another entry have less severe problems, the problems of this entry's packages are only notes.
        said.extend(rule_results.into_iter().map(|rule_result| RuleResult {
            evaluation: match serves {
                true => rule_result.evaluation,
                false => Evaluation::Note,
            },
            ..rule_result
        }));
    }
}

/// The packages of an entry, as text.
fn packages(row: &Cudnn) -> String {
    format!("cuDNN {} for CUDA {}", row.version, row.cuda_major)
}

fn needs(row: &Cudnn, driver: Option<&DriverVersion>) -> String {
    let fits = driver.filter(|driver| **driver >= row.min_driver);
    let is = fits.map_or_else(String::new, |driver| format!("; {driver} supports it"));
    let doubt = match row.confidence {
        Confidence::Verified => "",
        Confidence::Partial | Confidence::Unverified => " (partly unverified)",
    };
    format!(
        "{} (released for {}) needs driver {} or newer{is}{doubt}",
        packages(row),
        range(row),
        row.min_driver
    )
}

/// The CUDA versions of an entry, as text.
fn range(row: &Cudnn) -> String {
    match row.cuda_min == row.cuda_max {
        true => row.cuda_min.to_string(),
        false => format!("{} to {}", row.cuda_min, row.cuda_max),
    }
}

/// Returns the problems of the packages of an entry. `refuse` is the evaluation if the driver is too old, and `newer` if a
/// GPU is newer than the packages.
fn against(
    matrix: &Matrix,
    row: &Cudnn,
    (refuse, newer): (Evaluation, Evaluation),
    cuda: &[CudaVersion],
    boards: &[Board<'_>],
    driver: Option<&DriverVersion>,
) -> Vec<RuleResult> {
    let what = packages(row);
    let mut found = Vec::new();
    let mut add = |evaluation, text| found.push(say(Rule::Cudnn, evaluation, text, &row.citations));
    if let Some(driver) = driver.filter(|driver| **driver < row.min_driver) {
        let text = format!(
            "{what} needs driver {} or newer; {driver} is older",
            row.min_driver
        );
        add(refuse, text);
    }
    let range = format!("{what} was released for {}", range(row));
    for cuda in cuda.iter().filter(|cuda| cuda.major == row.cuda_major) {
        let wanted = cuda.minor_version();
        if wanted < row.cuda_min {
            add(Evaluation::Against, format!("{range}; {cuda} is older"));
        } else if wanted > row.cuda_max {
            add(Evaluation::Caution, format!("{range}; {cuda} is newer"));
        }
    }
    // The evaluation if a GPU is too old for the packages. No later version supports such a GPU again, so verified data of an
    // older version is enough for a refusal.
    let ended = match row.confidence {
        Confidence::Verified => Evaluation::Refuse,
        Confidence::Partial | Confidence::Unverified => Evaluation::Against,
    };
    for board in boards {
        let Some(own) = board.capability else {
            continue;
        };
        let label = &board.label;
        if own < row.capability_min {
            let last = (matrix.cudnn.iter())
                .filter(|other| other.version < row.version && own >= other.capability_min)
                .map(|other| other.version)
                .max()
                .map_or_else(String::new, |last| {
                    format!("; the last version with code for it is {last}")
                });
            let text = format!(
                "{what} has no code for {label}: it requires compute capability {} or newer, and the GPU has {own}{last}",
                row.capability_min
            );
            add(ended, text);
        } else if own.major > row.capability_max.major {
            let text = format!(
                "{what} is older than {label}: its support matrix ends with compute capability {}, and the GPU has {own}",
                row.capability_max
            );
            add(newer, text);
        }
    }
    found
}

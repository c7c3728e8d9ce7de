//! CUDA checks: the driver version must support the CUDA toolkit and cuDNN packages of the host. Toolkits in containers are not
//! checked.

use super::messages;
use crate::{
    check::{Family, Finding, Subject, Verdict},
    compat::{cudnn, matrix::Matrix, rules},
    model::{
        id::Id,
        version::{CudaVersion, CudnnVersion, DriverVersion},
    },
    step::StepError,
};

const CUDA: Id = Id::new("drv.version.cuda");

pub(super) const FAMILY: Family = Family {
    ids: || vec![CUDA],
    examine: |subject| Box::pin(examine(subject)),
};

/// Packages of the NVIDIA repositories: toolkit compilers and cuDNN libraries.
const NAMES: [&str; 3] = ["cuda-nvcc-*", "libcudnn?", "libcudnn?-cuda-*"];

/// The software in a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Brings {
    Toolkit(CudaVersion),
    /// The cuDNN version and its CUDA version. The minor CUDA version is 0 if the package name contains only the major version.
    Cudnn(CudnnVersion, CudaVersion),
}

/// Reads the name and the version of a package: `cuda-nvcc-12-8`, `libcudnn9-cuda-12` in `9.5.1.17-1`, and `libcudnn8` in
/// `8.9.7.29-1+cuda12.2` or `8.9.7.29-1.cuda12.2`.
fn brings(name: &str, version: &str) -> Option<Brings> {
    if let Some(toolkit) = name.strip_prefix("cuda-nvcc-") {
        let toolkit = toolkit.replace('-', ".");
        return toolkit.parse().ok().map(Brings::Toolkit);
    }
    let (number, _) = version.split_once('-')?;
    let cuda = match name.split_once("-cuda-") {
        Some((_, major)) => format!("{major}.0"),
        None => version.split_once("cuda")?.1.to_owned(),
    };
    Some(Brings::Cudnn(number.parse().ok()?, cuda.parse().ok()?))
}

/// Returns the minimum driver version and the display name.
fn needs(matrix: &Matrix, brings: Brings) -> (Option<&DriverVersion>, String) {
    match brings {
        Brings::Toolkit(cuda) => (rules::cuda_minimum(matrix, cuda).0, format!("CUDA {cuda}")),
        Brings::Cudnn(version, cuda) => {
            let of_cudnn = cudnn::min_driver(matrix, version, &[cuda]);
            // Before CUDA 11, each minor version has its own minimum driver version.
            let of_cuda = (cuda.major < 11).then(|| rules::cuda_minimum(matrix, cuda).0);
            (
                of_cudnn.max(of_cuda.flatten()),
                format!("cuDNN {version} for CUDA {}", cuda.major),
            )
        }
    }
}

fn decide(
    matrix: &Matrix,
    installed: Result<Vec<(String, String)>, String>,
    driver: Option<&DriverVersion>,
) -> Finding {
    let finding = |status, why: String| Finding::new(CUDA, status, why);
    let installed = match installed {
        Ok(installed) => installed,
        Err(why) => return finding(Verdict::Unknown, why),
    };
    let there: Vec<(&str, Brings)> = (installed.iter())
        .filter_map(|(name, version)| Some((name.as_str(), brings(name, version)?)))
        .collect();
    if there.is_empty() {
        let why = "no CUDA toolkit or cuDNN package is installed";
        return finding(Verdict::Skip, why.to_owned());
    }
    let Some(driver) = driver else {
        return finding(Verdict::Skip, "the driver version is unknown".to_owned());
    };
    let (mut fits, mut unknown) = (Vec::new(), Vec::new());
    let mut newer: Vec<(&DriverVersion, String)> = Vec::new();
    for (name, brings) in there {
        let (needed, what) = needs(matrix, brings);
        match needed {
            None => unknown.push(what),
            Some(needed) if driver < needed => {
                newer.push((
                    needed,
                    format!("{what} (`{name}`) requires driver {needed}"),
                ));
            }
            Some(_) => fits.push(what),
        }
    }
    let observed = Some(driver.to_string());
    if let Some(needed) = newer.iter().map(|(needed, _)| *needed).max() {
        let told: Vec<&str> = newer.iter().map(|(_, told)| told.as_str()).collect();
        return Finding {
            observed,
            expected: Some(format!("{needed} or newer")),
            remedy: Some(format!(
                "install driver {needed} or newer, or older CUDA and cuDNN packages"
            )),
            ..finding(
                Verdict::Warn,
                format!(
                    "{} or newer, but the driver version is {driver}: programs on the host that use them fail unless they use \
                     `cuda-compat`",
                    told.join(", ")
                ),
            )
        };
    }
    if fits.is_empty() {
        let why = format!(
            "the minimum driver version of {} is unknown",
            unknown.join(", ")
        );
        return finding(Verdict::Unknown, why);
    }
    let why = format!("driver {driver} supports {}", fits.join(", "));
    Finding {
        observed,
        ..finding(Verdict::Pass, why)
    }
}

async fn examine(subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
    let found = subject.state.driver().await;
    let driver = (found.loaded_version.as_ref())
        .or(found.module_version.as_ref())
        .or(found.package_version.as_ref())
        .or(found.library_version.as_ref());
    let installed = subject.state.packages_like(&NAMES).await;
    let finding = decide(subject.matrix, installed, driver);
    Ok(vec![messages::skip_without_gpu(finding, subject.facts)])
}

#[cfg(test)]
mod tests {
    use super::{Brings, NAMES, brings, decide};
    use crate::{check::Verdict, model::pattern, steps::fixtures::matrix};

    #[test]
    fn package_names_are_parsed() {
        let cuda = |text: &str| text.parse().expect("a CUDA version");
        let cudnn =
            |text: &str, of: &str| Brings::Cudnn(text.parse().expect("a version"), cuda(of));
        for (name, version, wanted) in rows! {
            "cuda-nvcc-12-8", "12.8.93-1", Some(Brings::Toolkit(cuda("12.8")));
            "libcudnn9-cuda-12", "9.5.1.17-1", Some(cudnn("9.5", "12.0"));
            "libcudnn8", "8.9.7.29-1+cuda12.2", Some(cudnn("8.9", "12.2"));
            "libcudnn8", "8.9.7.29-1.cuda11.8", Some(cudnn("8.9", "11.8"));
            "libcudnn8", "8.9.7.29-1", None;
            "cuda-nvcc-dev", "1", None;
        } {
            assert_eq!(brings(name, version), wanted, "{name} {version}");
            assert!(
                NAMES.iter().any(|one| pattern::matches(one, name)),
                "{name}"
            );
        }
    }

    #[test]
    fn host_cuda_and_cudnn_need_a_minimum_driver() {
        let of = |packages: &[(&str, &str)], driver: &str| {
            let packages = packages.iter();
            let installed =
                packages.map(|(name, version)| ((*name).to_owned(), (*version).to_owned()));
            decide(
                &matrix(),
                Ok(installed.collect()),
                driver.parse().ok().as_ref(),
            )
        };
        let nvcc = ("cuda-nvcc-13-0", "13.0.88-1");
        let cudnn = ("libcudnn9-cuda-12", "9.5.1.17-1");
        for (packages, driver, verdict, words) in rows! {
            vec![], "580.178.04", Verdict::Skip, "no CUDA toolkit";
            vec![cudnn], "", Verdict::Skip, "driver version is unknown";
            vec![cudnn], "525.60.13", Verdict::Pass, "driver 525.60.13 supports cuDNN 9.5 for CUDA 12";
            vec![cudnn, nvcc], "580.65.06", Verdict::Pass, "supports cuDNN 9.5 for CUDA 12, CUDA 13.0";
            vec![cudnn], "470.256.02", Verdict::Warn, "`libcudnn9-cuda-12`) requires driver 525.60.13";
            vec![cudnn, nvcc], "570.211.01", Verdict::Warn,
                "CUDA 13.0 (`cuda-nvcc-13-0`) requires driver 580.65.06";
            vec![("libcudnn7", "7.6.5.32-1+cuda10.2")], "418.39", Verdict::Warn,
                "requires driver 440.33";
            vec![("libcudnn9-cuda-14", "9.5.1.17-1")], "580.65.06", Verdict::Unknown, "minimum driver version";
        } {
            let finding = of(&packages, driver);
            assert_eq!(finding.status, verdict, "{}", finding.why);
            assert!(finding.why.contains(words), "{}", finding.why);
            assert_eq!(finding.remedy.is_some(), verdict == Verdict::Warn);
        }
        let unknown = decide(&matrix(), Err("no database".to_owned()), None);
        assert_eq!(unknown.status, Verdict::Unknown);
    }
}

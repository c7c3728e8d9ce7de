//! Merges the results of all GPUs that a name matches.

use std::collections::BTreeSet;

use crate::answer::{Answer, Compatibility, DriverAnswer, NameMatchAnswer, SCHEMA};

/// Merges labeled results for a name.
pub(super) fn together(name: &str, answers: Vec<(String, Answer)>) -> Answer {
    let mut groups: Vec<(Vec<String>, Answer)> = Vec::new();
    let told = |answer: &Answer| Answer {
        citations: Vec::new(),
        ..answer.clone()
    };
    let same = |one: &Answer, other: &Answer| told(one) == told(other);
    let mut labels: Vec<String> = Vec::new();
    for (label, answer) in answers {
        if !labels.contains(&label) {
            labels.push(label.clone());
        }
        match groups.iter_mut().find(|(_, known)| same(known, &answer)) {
            Some((members, known)) => {
                if !members.contains(&label) {
                    members.push(label);
                }
                let new = answer.citations.into_iter();
                let new: Vec<String> = new.filter(|c| !known.citations.contains(c)).collect();
                known.citations.extend(new);
            }
            None => groups.push((vec![label], answer)),
        }
    }
    let several = (labels.len() > 1).then(|| format!("`{name}` matches {}", labels.join(", ")));
    if groups.len() < 2
        && let Some((_, mut answer)) = groups.pop()
    {
        answer.why.extend(several);
        return answer;
    }
    let all = |wanted: &dyn Fn(&Answer) -> bool| groups.iter().all(|(_, answer)| wanted(answer));
    let first = &groups[0].1;
    let agree = all(&|answer| answer.verdict == first.verdict);
    let verdict = if agree {
        first.verdict
    } else {
        Compatibility::Unknown
    };
    let common: Vec<String> = (first.why.iter())
        .filter(|why| all(&|answer| answer.why.contains(why)))
        .cloned()
        .collect();
    let drivers = || groups.iter().map(|(_, answer)| &answer.driver);
    let driver = DriverAnswer {
        // The driver must support each matching GPU.
        min: drivers()
            .map(|driver| driver.min.clone())
            .collect::<Option<Vec<_>>>()
            .and_then(|all| all.into_iter().max()),
        max_branch: drivers().filter_map(|driver| driver.max_branch).min(),
        recommended: (first.driver.recommended.clone())
            .filter(|best| all(&|answer| answer.driver.recommended.as_ref() == Some(best))),
    };
    let module_flavor =
        (first.module_flavor).filter(|flavor| all(&|answer| answer.module_flavor == Some(*flavor)));
    let branches = first.branches.iter();
    let branches = branches.filter(|row| all(&|answer| answer.branches.contains(row)));
    let differ = (!agree).then(|| {
        format!("the results of the GPUs that `{name}` matches differ: specify one of them")
    });
    let mut seen = BTreeSet::new();
    let citations = groups.iter().flat_map(|(_, answer)| &answer.citations);
    let citations = citations.filter(|citation| seen.insert(*citation)).cloned();
    Answer {
        schema: SCHEMA,
        verdict,
        why: (differ.into_iter())
            .chain(common.iter().cloned())
            .chain(several)
            .collect(),
        driver,
        module_flavor,
        citations: citations.collect(),
        branches: branches.cloned().collect(),
        name_matches: (groups.iter())
            .map(|(gpus, answer)| NameMatchAnswer {
                gpus: gpus.clone(),
                verdict: answer.verdict,
                why: (answer.why.iter())
                    .filter(|why| !common.contains(why))
                    .cloned()
                    .collect(),
                driver: answer.driver.clone(),
                module_flavor: answer.module_flavor,
            })
            .collect(),
    }
}

//! Expectations of a step for a JSON document or for events that the product printed.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cases::Step;
use crate::out;

/// Compares the standard output of a step with its expectations. `saved` contains the documents of earlier steps.
pub fn expect(step: &Step, stdout: &str, saved: &mut BTreeMap<String, String>) -> Result<()> {
    if let Some(name) = &step.did {
        let plan = saved
            .get(name)
            .with_context(|| format!("no plan `{name}` was saved"))?;
        return same_changes(&parse(plan)?, stdout);
    }
    if let Some(name) = &step.save {
        parse(stdout)?;
        saved.insert(name.clone(), stdout.to_string());
    }
    let pointers = !(step.json.is_empty() && step.null.is_empty() && step.count.is_empty());
    let findings = step.fails.is_some() || !step.fails_with.is_empty();
    if !pointers && !findings && !step.did_nothing {
        return Ok(());
    }
    let document = parse(stdout)?;
    for (pointer, wanted) in &step.json {
        let found = document.pointer(pointer);
        if found != Some(wanted) {
            let found = found.map_or_else(|| "absent".into(), Value::to_string);
            bail!("{pointer} is {found}, not {wanted}");
        }
    }
    for pointer in &step.null {
        match document.pointer(pointer) {
            Some(Value::Null) => {}
            None => bail!("{pointer} is absent, not null"),
            Some(found) => bail!("{pointer} is {found}, not null"),
        }
    }
    for (pointer, wanted) in &step.count {
        match document.pointer(pointer).and_then(Value::as_array) {
            Some(list) if list.len() == *wanted => {}
            Some(list) => bail!("{pointer} has {} elements, not {wanted}", list.len()),
            None => bail!("{pointer} is not a list"),
        }
    }
    if findings {
        expect_failures(step, &failing(&document)?)?;
    }
    if step.did_nothing {
        let changes = planned(&document)?;
        if !changes.is_empty() {
            bail!("changes are pending: {changes:#?}");
        }
    }
    Ok(())
}

fn parse(text: &str) -> Result<Value> {
    serde_json::from_str(text)
        .with_context(|| format!("stdout is not a JSON document:\n{}", out::tail(text, 20)))
}

fn expect_failures(step: &Step, failing: &BTreeMap<String, String>) -> Result<()> {
    let told = || {
        let lines = failing.iter().map(|(id, why)| format!("\n  {id}: {why}"));
        lines.collect::<String>()
    };
    for wanted in step.fails_with.iter().chain(step.fails.iter().flatten()) {
        if !failing.contains_key(wanted) {
            bail!("`{wanted}` does not fail; failing findings:{}", told());
        }
    }
    let Some(exact) = &step.fails else {
        return Ok(());
    };
    let others: Vec<String> = (failing.iter().filter(|(id, _)| !exact.contains(id)))
        .map(|(id, why)| format!("\n  {id}: {why}"))
        .collect();
    if !others.is_empty() {
        bail!(
            "more findings fail than the `fails` of this step:{}",
            others.concat()
        );
    }
    Ok(())
}

/// Returns a line for each failing finding, if the text is a document of `check`.
pub fn failures(stdout: &str) -> Option<String> {
    let document = serde_json::from_str(stdout).ok()?;
    let failing = failing(&document).ok().filter(|found| !found.is_empty())?;
    let lines = failing.iter().map(|(id, why)| format!("  {id}: {why}\n"));
    Some(lines.collect())
}

/// The failing findings, with their reasons.
fn failing(document: &Value) -> Result<BTreeMap<String, String>> {
    let findings = document["findings"]
        .as_array()
        .context("the document has no `findings`")?;
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_string();
    Ok(findings
        .iter()
        .filter(|finding| finding["status"] == "fail")
        .map(|finding| (text(finding, "id"), text(finding, "why")))
        .collect())
}

/// All changes in a document of `plan`: step, kind and summary.
fn planned(document: &Value) -> Result<Vec<(String, String, String)>> {
    let steps = document["steps"]
        .as_array()
        .context("the document has no `steps`")?;
    let mut changes = Vec::new();
    for step in steps {
        for change in step["changes"].as_array().into_iter().flatten() {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
            changes.push((
                text(&step["id"]),
                text(&change["kind"]),
                text(&change["summary"]),
            ));
        }
    }
    Ok(changes)
}

/// Compares a plan with the events of the run that followed it. A run merges the package changes of several steps into
/// one transaction, so they are compared package by package. The resume unit belongs to the run, not to a step.
fn same_changes(plan: &Value, events: &str) -> Result<()> {
    let (mut wanted, mut done) = (BTreeSet::new(), BTreeSet::new());
    for (_, _, summary) in planned(plan)? {
        wanted.extend(parts(&summary));
    }
    for line in events.lines() {
        let event: Value = serde_json::from_str(line).context("invalid event")?;
        let event = &event["event"];
        let own = event["steps"]
            .as_array()
            .is_some_and(|steps| steps.iter().all(|s| s == "resume"));
        if event["kind"] == "change-applied" && !own {
            done.extend(parts(event["summary"].as_str().unwrap_or_default()));
        }
    }
    if wanted.is_empty() {
        bail!("the plan has no change");
    }
    let only_planned: Vec<_> = wanted.difference(&done).collect();
    let only_done: Vec<_> = done.difference(&wanted).collect();
    if only_planned.is_empty() && only_done.is_empty() {
        return Ok(());
    }
    bail!("planned and not done: {only_planned:#?}\ndone and not planned: {only_done:#?}")
}

/// The items of a summary: each package of a transaction, otherwise the summary itself.
fn parts(summary: &str) -> Vec<String> {
    match summary.strip_prefix("install ") {
        Some(packages) => packages
            .split(", ")
            .map(|name| format!("install {name}"))
            .collect(),
        None => vec![summary.to_string()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn plan() -> Value {
        json!({ "steps": [
            { "id": "a", "changes": [{ "kind": "install-packages", "summary": "install x, y" }] },
            { "id": "b", "changes": [{ "kind": "install-packages", "summary": "install z" },
                                     { "kind": "write-file", "summary": "write `/f`" }] },
            { "id": "c", "changes": [] },
        ] })
    }

    fn event(steps: &[&str], summary: &str) -> String {
        let event =
            json!({ "event": { "kind": "change-applied", "steps": steps, "summary": summary } });
        format!("{event}\n")
    }

    #[test]
    fn merged_transaction_equals_planned_ones() {
        let events = event(&["a", "b"], "install x, y, z")
            + &event(&["b"], "write `/f`")
            + &event(&["resume"], "enable `u`");
        same_changes(&plan(), &events).unwrap();
    }

    #[test]
    fn unplanned_or_missing_changes_are_errors() {
        let events = event(&["a", "b"], "install x, y, z") + &event(&["b"], "write `/other`");
        let text = same_changes(&plan(), &events).unwrap_err().to_string();
        assert!(text.contains("`/f`") && text.contains("`/other`"), "{text}");
    }

    #[test]
    fn check_document_is_reduced_to_failures() {
        let document = json!({"findings": [
            {"id": "a", "status": "pass", "why": "good"},
            {"id": "b", "status": "fail", "why": "bad"},
        ]});
        assert_eq!(failures(&document.to_string()).unwrap(), "  b: bad\n");
        for text in ["", "text", "{}", r#"{"findings": []}"#] {
            assert_eq!(failures(text), None, "{text}");
        }
    }

    #[test]
    fn failing_findings_must_match_exactly() {
        let document = json!({ "findings": [
            { "id": "a", "status": "fail", "why": "w" }, { "id": "b", "status": "pass" } ] });
        let failing = failing(&document).unwrap();
        let step =
            |text: &str| toml::from_str::<Step>(&format!("title = 't'\nrun = ''\n{text}")).unwrap();
        expect_failures(&step("fails = ['a']"), &failing).unwrap();
        expect_failures(&step("fails-with = ['a']"), &failing).unwrap();
        assert!(expect_failures(&step("fails = []"), &failing).is_err());
        assert!(expect_failures(&step("fails = ['a', 'b']"), &failing).is_err());
    }

    #[test]
    fn absent_value_is_not_null() {
        let look = |text: &str| {
            let step = toml::from_str::<Step>(&format!("title = 't'\nrun = ''\n{text}")).unwrap();
            expect(
                &step,
                r#"{"gpus": [1, 2], "driver": null}"#,
                &mut BTreeMap::new(),
            )
        };
        look("count = { '/gpus' = 2 }\nnull = ['/driver']").unwrap();
        for (wrong, word) in [
            ("count = { '/gpus' = 3 }", "has 2 elements"),
            ("count = { '/driver' = 0 }", "is not a list"),
            ("null = ['/gpus/2']", "is absent"),
        ] {
            assert!(
                look(wrong).unwrap_err().to_string().contains(word),
                "{wrong}"
            );
        }
    }
}
